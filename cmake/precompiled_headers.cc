// Intentionally without code: CMake compiles precompiled headers only for a target with a source.
