"""The scenarios, by what they are about. Each works on streams named S, T, ... of its own."""
