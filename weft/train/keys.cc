// The keys of a recipe for its model and its data. internal/settings.cc has the others.
#include "weft/train/internal/limits.h"
#include "weft/train/options.h"
#include "weft/train/recipe.h"

namespace weft::train {
namespace {

using internal::at_least;
using internal::between;
using internal::one_of;

std::int64_t whole(std::int64_t value) { return value; }

// Products of two such sizes, and a few more, fit into 64 bits.
constexpr double kMaxSize = 1e8;

Schema data_keys() {
  return {
      {"model.name", "cnn",
       "Model: cnn, mlp, resnet18, 34, 50, 101, 152, vit or mixer for images; gpt or lstm for a "
       "text."},
      {"model.family", "gpt2",
       "Kind of gpt: gpt2 (LayerNorm, learned positions, GELU) or llama (RMSNorm, rotary "
       "positions, SwiGLU).",
       one_of({"gpt2", "llama"})},
      {"model.layers", whole(4), "Number of blocks (gpt, vit, mixer) or layers (lstm).",
       between(1, kMaxSize)},
      {"model.width", whole(128), "Width of the hidden representation (gpt, vit, mixer, lstm).",
       between(1, kMaxSize)},
      {"model.heads", whole(4), "Attention heads (gpt, vit).", between(1, kMaxSize)},
      {"model.kv_heads", whole(0), "Key and value heads (gpt). 0: as many as model.heads.",
       between(0, kMaxSize)},
      {"model.sequence", whole(128),
       "Tokens of a training sample (gpt, lstm), and the context length of a gpt.",
       between(2, kMaxSize)},
      {"model.experts", whole(0),
       "Experts that replace the MLP of each block (gpt). 0: no experts.", between(0, kMaxSize)},
      {"model.experts_top_k", whole(2), "Experts that each token is routed to (gpt).",
       between(1, kMaxSize)},
      {"model.experts_capacity", 0.0,
       "Capacity factor of an expert: tokens above this times the even share are dropped (gpt). 0: "
       "no limit.",
       at_least(0)},
      {"model.experts_balance", 0.01, "Weight of the load-balancing loss of experts (gpt).",
       at_least(0)},
      {"model.tied", true, "Tie the weights of the token embedding and the output layer (lstm)."},
      {"model.dropout", 0.0, "Dropout probability (gpt, lstm, vit).", between(0, 0.99)},
      {"model.hidden", std::vector<std::int64_t>{256, 128}, "Widths of the hidden layers (mlp).",
       between(1, kMaxSize)},
      {"model.stem", "3x3", "First layer of a resnet: 3x3 for small images, 7x7 for large ones.",
       one_of({"3x3", "7x7"})},
      {"model.patch", whole(4),
       "Side of a patch in pixels; must divide both sides of the image (vit, mixer).",
       between(1, kMaxSize)},
      {"model.pool", "token",
       "Input of the classifier: a class token, or the mean over the patches (vit).",
       one_of({"token", "mean"})},
      {"model.from", "",
       "Folder with a model in Hugging Face's format to start from (gpt): config.json, safetensors "
       "files and tokenizer.json. It gives the sizes of the model. Empty: random weights."},
      {"model.config", "", "Contents of the config.json of model.from; set by weft train."},
      {"data.name", "fashion-mnist",
       "Data set: fashion-mnist, shapes (generated, needs no files), or text.",
       one_of({"fashion-mnist", "shapes", "text"})},
      {"data.file", "", "Text file, or a folder of text files and folders."},
      {"data.tokenizer", "bytes",
       "Tokenizer: bytes, bpe:4096 (trained on the text), or a tokenizer.json."},
      {"data.validation", 0.1, "Share of the text, at its end, that is held out for evaluation.",
       between(0.001, 0.9)},
      {"data.pack_documents", false,
       "Pack whole documents into samples, without attention between documents (gpt). false: cut "
       "the text into windows."},
      {"data.dir", "",
       "Folder of fashion-mnist's four IDX files; empty: where Debian's dataset-fashion-mnist puts "
       "them."},
      {"data.seed", whole(1), "Seed of the generated data set (shapes).", at_least(0)},
      {"data.crop_padding", whole(0),
       "Pixels of padding before a random crop of training images. 0: no crop.", between(0, 127)},
      {"data.flip", false, "Flip training images horizontally at random."},
      {"train.loss", "cross_entropy", "Loss function (images).",
       one_of({"cross_entropy", "nll", "mse"})},
      {"train.label_smoothing", 0.0, "Label smoothing of cross_entropy (images).",
       between(0, 0.99)}};
}

}  // namespace

Schema recipe_schema() { return Schema().add(data_keys()).add(options_schema()); }

}  // namespace weft::train
