"""Run real torch.distributed jobs (gloo, on CPUs) on this machine and store what they took.

torch is imported only inside the processes that run the jobs; it comes with the extra ``record``.
"""
