"""The encoder's features go into an object of another file, from which the loss is computed."""

import torch
from apex import amp
from storage import Bank


def train(encoder, decoder, loader):
    optimizer = torch.optim.Adam([*encoder.parameters(), *decoder.parameters()])
    [encoder, decoder], optimizer = amp.initialize([encoder, decoder], optimizer, opt_level="O2")
    for images, labels in loader:
        bank = Bank()
        bank.put(encoder.stem(images), place=0)
        for image in images:
            bank.put(encoder(image), place=1)
        with torch.no_grad():
            print(encoder(images).norm())
        loss = (decoder(bank.everything()) - labels).pow(2).mean()
        optimizer.zero_grad()
        with amp.scale_loss(loss, optimizer) as scaled_loss:
            scaled_loss.backward()
        optimizer.step()
        print(encoder(images).norm())
