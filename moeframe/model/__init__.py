"""The DeepSeek-V3 model: four phases a block."""
