"""Nothing is compiled: the interpreter runs the kernels."""

from triton.backends.compiler import BaseBackend


class InterpretedBackend(BaseBackend):
    @staticmethod
    def supports_target(target):
        return target.backend == "cpu"

    def hash(self):
        return "interpreted"

    def parse_options(self, options):
        raise RuntimeError("TRITON_INTERPRET must be 1, kernels cannot be compiled for the CPU")

    add_stages = load_dialects = get_module_map = parse_options
