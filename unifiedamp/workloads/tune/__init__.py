"""``unifiedamp tune``: a short probe picks policy, initial loss scale and the layers that need float32."""
