"""A Triton backend named "cpu" for TRITON_INTERPRET=1.

vLLM's Model Runner V2, which alone returns routed experts, asks Triton for a backend of the device that it runs on.
That of CPUs, triton-cpu, is on no package index; Triton's own interpreter runs the same kernels, but no backend says
so.
"""
