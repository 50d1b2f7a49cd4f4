// Reference models: GPT and Llama with Hugging Face weights, LSTM, ResNet, Vision Transformer,
// MLP-Mixer.
// Includes parts of torch/nn.
#pragma once

#include "weft/models/gpt_blocks.h"
#include "weft/models/huggingface.h"
#include "weft/models/lstm.h"
#include "weft/models/vision/mixer.h"
#include "weft/models/vision/resnet.h"
#include "weft/models/vision/vit.h"
