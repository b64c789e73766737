"""The program `streamctl`: the operator's command line of streamd."""
