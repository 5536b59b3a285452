"""One file for each system: `train(work, clock)`, `decode` and `prepare`, as far as it can do these.

A function runs for ever: it tells the clock at the end of each lap (some updates, or a pass over the sentences) how
many target tokens were in it, and the clock holds it until the next lap may begin.
"""
