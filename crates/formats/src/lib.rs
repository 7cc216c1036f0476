//! GGUF and safetensors as containers, checked against hostile files
