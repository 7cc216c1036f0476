//! The specification of every kernel, in plain loops and safe code.
//!
//! These functions run on any machine.  The bodies that other instruction sets reuse, compiled
//! with their registers, are `inline(always)` for that purpose.

pub(crate) mod decode;
pub(crate) mod float;
mod integer;
pub(crate) mod quantize;

use super::{Dots32, Dots256, Isa, Kernels, integer_table};

pub(crate) static KERNELS: Kernels = Kernels {
    isa: Isa::Scalar,
    decode: |format, bytes, out| decode::decode(format, bytes, out),
    dot: |w, x| float::dot(w, [x])[0],
    dot4: |w, x| float::dot(w, x),
    axpy: |alpha, x, y| float::axpy(alpha, x, y),
    exp_in_place: |x| float::exp_in_place(x),
    softmax_in_place: |x| float::softmax_in_place(x),
    silu_mul: |gate, up| float::silu_mul(gate, up),
    gelu_tanh_mul: |gate, up| float::gelu_tanh_mul(gate, up),
    scale: |x, weight, scale, out| float::scale(x, weight, scale, out),
    layer_norm: |x, weight, bias, eps, out| float::layer_norm(x, weight, bias, eps, out),
    quantize_32: |x, q, scales, sums| quantize::per_32(x, q, scales, sums),
    quantize_256: |x, q, scales, s16, s32| quantize::per_256(x, q, scales, s16, s32),
    integer: integer_table!(integer),
};
