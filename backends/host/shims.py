"""The dedicated C functions for ATen operators that are worth a direct call, with their signatures.

A line says which function stands for an operator on the CPU and what it takes, in the grammar of torch's schemas; the
one for CUDA has `cuda_` in its name for `cpu_`. `Tensor(a!) out` as the first parameter is memory that the caller
provides for the result; a result `Tensor(a)` is the argument marked the same way. In C a list is a pointer and a
length, an optional value a pointer that may be null, a Scalar a double, and each result a pointer to where its handle
goes.

These functions skip the dispatcher, so they see neither autograd nor autocast; neither has work left to do when a
compiled graph runs.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from tilewright.dialects.aten_schema import Argument, Return, parse_schema

_TABLE = """
aten._adaptive_avg_pool2d.default = cpu__adaptive_avg_pool2d(Tensor self, int[] output_size) -> Tensor
aten._adaptive_avg_pool2d_backward.default = cpu__adaptive_avg_pool2d_backward(Tensor grad_output, Tensor self) -> Tensor
aten._embedding_bag.default = cpu__embedding_bag(Tensor weight, Tensor indices, Tensor offsets, bool scale_grad_by_freq, int mode, bool sparse, Tensor? per_sample_weights, bool include_last_offset, int padding_idx) -> (Tensor, Tensor, Tensor, Tensor)
aten._embedding_bag_forward_only.default = cpu__embedding_bag_forward_only(Tensor weight, Tensor indices, Tensor offsets, bool scale_grad_by_freq, int mode, bool sparse, Tensor? per_sample_weights, bool include_last_offset, int padding_idx) -> (Tensor, Tensor, Tensor, Tensor)
aten._int_mm.default = cpu__int_mm_out(Tensor(a!) out, Tensor self, Tensor mat2) -> ()
aten._scaled_dot_product_flash_attention_for_cpu.default = cpu__scaled_dot_product_flash_attention_for_cpu(Tensor query, Tensor key, Tensor value, float dropout_p, bool is_causal, Tensor? attn_mask, float? scale) -> (Tensor, Tensor)
aten._scaled_dot_product_flash_attention_for_cpu_backward.default = cpu__scaled_dot_product_flash_attention_for_cpu_backward(Tensor grad_out, Tensor query, Tensor key, Tensor value, Tensor out, Tensor logsumexp, float dropout_p, bool is_causal, Tensor? attn_mask, float? scale) -> (Tensor, Tensor, Tensor)
aten.addmm.default = cpu_addmm_out(Tensor(a!) out, Tensor self, Tensor mat1, Tensor mat2, Scalar beta, Scalar alpha) -> ()
aten.addmm.out = cpu_addmm_out(Tensor(a!) out, Tensor self, Tensor mat1, Tensor mat2, Scalar beta, Scalar alpha) -> Tensor(a!)
aten.avg_pool2d.default = cpu_avg_pool2d(Tensor self, int[] kernel_size, int[] stride, int[] padding, bool ceil_mode, bool count_include_pad, int? divisor_override) -> Tensor
aten.avg_pool2d_backward.default = cpu_avg_pool2d_backward(Tensor grad_output, Tensor self, int[] kernel_size, int[] stride, int[] padding, bool ceil_mode, bool count_include_pad, int? divisor_override) -> Tensor
aten.baddbmm.default = cpu_baddbmm_out(Tensor(a!) out, Tensor self, Tensor batch1, Tensor batch2, Scalar beta, Scalar alpha) -> ()
aten.baddbmm.out = cpu_baddbmm_out(Tensor(a!) out, Tensor self, Tensor batch1, Tensor batch2, Scalar beta, Scalar alpha) -> Tensor(a!)
aten.bmm.default = cpu_bmm_out(Tensor(a!) out, Tensor self, Tensor mat2) -> ()
aten.cat.default = cpu_cat(Tensor[] tensors, int dim) -> Tensor
aten.convolution.default = cpu_convolution(Tensor input, Tensor weight, Tensor? bias, int[] stride, int[] padding, int[] dilation, bool transposed, int[] output_padding, int groups) -> Tensor
aten.convolution_backward.default = cpu_convolution_backward(Tensor grad_output, Tensor input, Tensor weight, int[]? bias_sizes, int[] stride, int[] padding, int[] dilation, bool transposed, int[] output_padding, int groups, bool[] output_mask) -> (Tensor, Tensor, Tensor)
aten.copy_.default = copy_(Tensor(a!) self, Tensor src, bool non_blocking) -> Tensor(a!)
aten.cumprod.default = cpu_cumprod(Tensor self, int dim, ScalarType? dtype) -> Tensor
aten.cumsum.default = cpu_cumsum(Tensor self, int dim, ScalarType? dtype) -> Tensor
aten.index.Tensor = cpu_index_Tensor(Tensor self, Tensor?[] indices) -> Tensor
aten.index_put.default = cpu_index_put(Tensor self, Tensor?[] indices, Tensor values, bool accumulate) -> Tensor
aten.logcumsumexp.default = cpu_logcumsumexp(Tensor self, int dim) -> Tensor
aten.masked_scatter.default = cpu_masked_scatter(Tensor self, Tensor mask, Tensor source) -> Tensor
aten.max_pool2d_with_indices.default = cpu_max_pool2d_with_indices(Tensor self, int[] kernel_size, int[] stride, int[] padding, int[] dilation, bool ceil_mode) -> (Tensor, Tensor)
aten.max_pool2d_with_indices_backward.default = cpu_max_pool2d_with_indices_backward(Tensor grad_output, Tensor self, int[] kernel_size, int[] stride, int[] padding, int[] dilation, bool ceil_mode, Tensor indices) -> Tensor
aten.mm.default = cpu_mm_out(Tensor(a!) out, Tensor self, Tensor mat2) -> ()
aten.native_dropout.default = cpu_native_dropout(Tensor input, float p, bool? train) -> (Tensor, Tensor)
aten.sort.default = cpu_sort(Tensor self, int dim, bool descending) -> (Tensor, Tensor)
aten.sort.stable = cpu_sort_stable(Tensor self, bool? stable, int dim, bool descending) -> (Tensor, Tensor)
aten.topk.default = cpu_topk(Tensor self, int k, int dim, bool largest, bool sorted) -> (Tensor, Tensor)
"""  # noqa: E501  a table: one line for each

_CUDA_TABLE = """
aten._scaled_dot_product_cudnn_attention.default = cuda__scaled_dot_product_cudnn_attention(Tensor query, Tensor key, Tensor value, Tensor? attn_bias, bool compute_log_sumexp, float dropout_p, bool is_causal, bool return_debug_mask, float? scale) -> (Tensor, Tensor, Tensor, Tensor, int, int, Tensor, Tensor, Tensor)
aten._scaled_dot_product_efficient_attention.default = cuda__scaled_dot_product_efficient_attention(Tensor query, Tensor key, Tensor value, Tensor? attn_bias, bool compute_log_sumexp, float dropout_p, bool is_causal, float? scale) -> (Tensor, Tensor, Tensor, Tensor)
aten._scaled_dot_product_flash_attention.default = cuda__scaled_dot_product_flash_attention(Tensor query, Tensor key, Tensor value, float dropout_p, bool is_causal, bool return_debug_mask, float? scale) -> (Tensor, Tensor, Tensor, Tensor, int, int, Tensor, Tensor, Tensor)
"""  # noqa: E501  a table: one line for each


@dataclass(frozen=True)
class Shim:
    """A C function that does what an operator does."""

    symbol: str
    parameters: tuple[Argument, ...]
    returns: tuple[Return, ...]
    on_any_device: bool = False
    """Whether it takes tensors of all devices, even in one call; others take those of one device."""

    @property
    def has_out(self) -> bool:
        """Whether the first parameter is memory for the result, which the operator itself does not take."""
        return self.parameters[0].name == "out" and not self.returns


@cache
def _lines(device_type: str) -> Mapping[str, str]:
    table = _TABLE + _CUDA_TABLE if device_type == "cuda" else _TABLE
    lines = (line.partition(" = ") for line in table.splitlines() if line)
    return {operator: signature for operator, _, signature in lines}


@cache
def find_shim(operator: str, device_type: str = "cpu") -> Shim | None:
    """Return the C function for an operator (`aten.mm.default`), or None if there is none; PyTorch may lack it."""
    signature = _lines(device_type).get(operator)
    if signature is None:
        return None
    schema = parse_schema(signature)
    name = signature[: signature.index("(")]
    kind, _, of_device = name.partition("_")
    if kind not in ("cpu", "cuda"):
        return Shim(f"aoti_torch_{name}", schema.arguments, schema.returns, on_any_device=True)
    return Shim(f"aoti_torch_{device_type}_{of_device}", schema.arguments, schema.returns)


def operators(device_type: str = "cpu") -> tuple[str, ...]:
    """Return the operators that have a dedicated function for a kind of device, if PyTorch has it."""
    return tuple(_lines(device_type))
