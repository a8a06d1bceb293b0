"""The inner loop of a block product: some rows of 16-bit codes by a panel of codes, summed as whole numbers."""

from llvmlite import ir

from vllm_obs.engine.kernels.cpu.emit import F32, I16, I32, I64, POINTER, Emitter, Value
from vllm_obs.engine.kernels.cpu.jit import Machine
from vllm_obs.engine.kernels.cpu.linear_tile import max_rows_a_tile, vectors_a_panel
from vllm_obs.engine.kernels.cpu.row_codes import CODE_BYTES, GROUP_SIZE

NUM_PAIRS = GROUP_SIZE // 2


def most_rows(machine: Machine) -> int:
    """How many rows by a panel fit the registers."""
    return max_rows_a_tile(machine, vectors_a_panel(machine))


def emit_block_tile(module: ir.Module, machine: Machine, num_rows: int) -> Value:
    """`block_tile_n(codes, factors, row stride, weights, scales, sums)`: adds n rows' products of a group to sums.

    codes, factors: as row_codes writes them, of that group. weights: int16 (pairs, panel, 2). scales: float32
    (2, panel) of scale and offset. sums: float32 (n, panel).

    Within a group all is exact: 32 products of 16 by 4 bits are less than 2**24, by 8 bits less than 2**28. Then
    sum += scale_x * (scale_w * product + offset_w * sum of the row's codes), group after group: for each row the
    same however many are computed together.
    """
    name = f"block_tile_{num_rows}"
    known = module.globals.get(name)
    if known is not None:
        return known
    kinds = [POINTER, POINTER, I64, POINTER, POINTER, POINTER]
    emit = Emitter(module, name, kinds, machine.num_lanes)
    emit.function.linkage = "internal"
    emit.function.attributes.add("noinline")
    _Tile(emit, machine, num_rows).emit_group()
    return emit.function


class _Tile:
    def __init__(self, emit: Emitter, machine: Machine, num_rows: int) -> None:
        self.emit, self.rows, self.vectors = emit, range(num_rows), range(vectors_a_panel(machine))
        self.add_pairs = emit.add_pairs_at_once if machine.adds_products else emit.add_pairs
        self.vector_bytes = 4 * machine.num_lanes
        self.panel_bytes = self.vector_bytes * len(self.vectors)
        codes, factors, stride, self.weights, self.scales, self.sums = emit.arguments
        self.codes = [emit.at(codes, emit.mul(stride, row)) for row in self.rows]
        self.factors = [emit.at(factors, emit.mul(stride, row)) for row in self.rows]

    def emit_group(self) -> None:
        """The whole function, without a loop: nothing that would have to be counted or waited for."""
        emit, build = self.emit, self.emit.build
        codes = ir.VectorType(I16, 2 * emit.num_lanes)
        products = [emit.every(0)] * (len(self.rows) * len(self.vectors))
        for pair in range(NUM_PAIRS):
            columns = [emit.load(self.weights, self._at(pair, number), codes) for number in self.vectors]
            for row in self.rows:
                both = emit.load(self.codes[row], 2 * CODE_BYTES * pair, I32)
                value = build.bitcast(emit.splat(both), codes)
                for number, column in enumerate(columns):
                    place = row * len(columns) + number
                    products[place] = self.add_pairs(products[place], column, value)
        for row in self.rows:
            self._add(row, products[row * len(self.vectors) :])
        emit.finish()

    def _add(self, row: int, products: list[Value]) -> None:
        """Scale a row's products and add them to the sums."""
        emit = self.emit
        scale, total = (emit.splat(emit.load(self.factors[row], at, F32)) for at in (0, 4))
        for number in self.vectors:
            product = emit.build.sitofp(products[number], emit.vector)
            scaled = emit.build.fmul(product, emit.load(self.scales, self._at(0, number), emit.vector))
            whole = emit.fma(emit.load(self.scales, self._at(1, number), emit.vector), total, scaled)
            target = self._at(row, number)
            emit.store(emit.fma(whole, scale, emit.load(self.sums, target, emit.vector)), self.sums, target)

    def _at(self, line: int, number: int) -> int:
        return line * self.panel_bytes + number * self.vector_bytes
