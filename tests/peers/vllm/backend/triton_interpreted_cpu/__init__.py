"""A Triton backend named "cpu" for TRITON_INTERPRET=1.

Only vLLM's Model Runner V2 returns routed experts. It asks Triton for a backend of its device. The backend for CPUs,
triton-cpu, is on no package index. Triton's own interpreter runs the same kernels, but does not register as a backend.
"""
