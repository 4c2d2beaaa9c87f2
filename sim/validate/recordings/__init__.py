"""Predictions beside runs of real torch.distributed jobs, as ``clusterloom record`` measures them."""
