"""What known failures say of themselves in console text: declared data, one file a family."""
