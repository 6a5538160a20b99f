"""Programs written anew before they become kernels: jaxprs in, jaxprs out. Knows no batch and no LLVM."""
