"""What JAX's primitives are for where that is not arithmetic, and why some numeric ones are not in lanes. Data only."""

from __future__ import annotations

from collections.abc import Mapping

#: The primitives that stand in these modules are of the languages of kernels for other processors.
OTHER_PLATFORMS = (
    "jax._src.cudnn",
    "jax._src.pallas",
    "jax._src.tpu_custom_call",
    "jax.experimental.mosaic",
    "jax.experimental.pallas",
)


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


#: Kinds of primitives that are not numeric: what it is that they do, and their names.
NOT_NUMERIC: Mapping[str, frozenset[str]] = {
    "across devices: collectives, and where data lie": _names("""
        all_gather all_gather_done all_gather_invariant all_gather_reduced all_gather_reduced_start all_gather_start
        all_to_all all_to_all_done all_to_all_start axis_index device_put global_array_to_host_local_array
        host_local_array_to_global_array layout_constraint pbroadcast pbroadcast_done pbroadcast_dynamic
        pbroadcast_start platform_index pmax pmin ppermute ppermute_done ppermute_start precv preduced psend psum
        psum_done psum_invariant psum_invariant_start psum_start ragged_all_to_all reduce_scatter reduce_scatter_done
        reduce_scatter_start relayout reshard shard_map sharding_constraint unreduced_pmax unreduced_pmin unreduced_psum
        unreduced_psum_start unreduced_reduce_scatter unreduced_reduce_scatter_start vary_unreduced_cast
        vary_unreduced_cast_p with_memory_space_constraint compute_on"""),
    "effects: callbacks, prints, mutable arrays": _names("""
        accum_grad_in_ref addupdate box_get box_set check create_linear debug_callback debug_print empty_ref free_ref
        freeze get inspect_sharding io_callback log_extend log_read new_box new_log new_ref pin
        pure_callback buffer_callback run_state swap unpin"""),
    "other platforms: calls of cuSPARSE": _names("coo_spmm coo_spmv csr_spmm csr_spmv"),
    "foreign: calls of what JAX does not see into": _names("""
        call_exported custom_partitioning ffi_call fused_call"""),
    "within JAX's own transformations": _names("""
        after_all call_hi_primitive_linearized create_token custom_jvp_call_jaxpr custom_lin custom_vmap_call dce_sink
        dim_as_value dimension_size from_edtype shape_assertion stage tie to_edtype unreachable"""),
}

_WHOLE_BATCH = "under jax.vmap the bits of a batch of `rbg` keys are drawn at once from the first key"

#: Why an equation of a numeric primitive is not in lanes, where no rule and no composition takes it.
REASONS: Mapping[str, str] = {
    "eig": "matrices of more than 16 rows",
    "fft": "a Fourier transform of more than 128 elements along an axis, 4096 in all, or of a prime factor above 61",
    "random_bits": _WHOLE_BATCH,
    "random_fold_in": "the keys that `unsafe_rbg` makes are bits of `rbg`: " + _WHOLE_BATCH,
    "random_gamma": "it draws bits from `rbg` keys, one example after another",
    "random_split": "the keys that `unsafe_rbg` makes are bits of `rbg`: " + _WHOLE_BATCH,
    "rng_bit_generator": _WHOLE_BATCH,
    "rng_uniform": "its generator has a state of its own, and jax.vmap does not take it",
    "spsolve": "a sparse solver of SciPy's runs on the host, one example after another",
}


def _larger_than(most: int) -> str:
    return f"a complex matrix of more than {most} rows or columns is left to XLA"


#: The same of complex operands, by primitive.
COMPLEX_REASONS: Mapping[str, str] = {
    **dict.fromkeys(("cholesky", "lu", "triangular_solve"), _larger_than(10)),
    **dict.fromkeys(("geqp3", "geqrf", "hessenberg", "householder_product", "ormqr", "qr", "schur", "svd",
                     "tridiagonal"), _larger_than(16)),
    "eigh": _larger_than(32),
    "tridiagonal_solve": "complex tridiagonal systems that are perturbed are left to XLA",
}
