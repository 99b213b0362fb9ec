"""What is patched in torch, by the module that holds it. Imported only once torch is."""
