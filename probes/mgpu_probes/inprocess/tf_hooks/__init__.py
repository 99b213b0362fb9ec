"""What is patched in TensorFlow and Keras, by the module that holds it.

TensorFlow is never imported here: everything of it is taken from `sys.modules`, where the user's
program has put it.
"""
