"""Statistical tests: whether values differ by more than noise, and whether events recur."""
