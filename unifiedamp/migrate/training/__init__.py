"""What rewriting any torch training loop needs: who is who in a file, its losses, steps and clipping, and its flags."""
