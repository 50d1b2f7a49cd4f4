#include "weft/train/internal/recipe_settings.h"

#include "weft/data/image_set.h"
#include "weft/train/internal/limits.h"

namespace weft::train::internal {
namespace {

// Products of two such sizes, and a few more, fit into 64 bits.
constexpr double kMaxSize = 1e8;

UsedBy for_images() { return for_data({"fashion-mnist", "shapes"}); }

void size_settings(ModelSettings& m, SettingsPass& pass) {
  pass("model.name", m.name,
       "Model: cnn, mlp, resnet18, 34, 50, 101, 152, vit or mixer for images; gpt or lstm for a "
       "text.");
  pass.choice("model.family", m.family,
              "Kind of gpt: gpt2 (LayerNorm, learned positions, GELU) or llama (RMSNorm, rotary "
              "positions, SwiGLU).",
              {"gpt2", "llama"}, for_models({"gpt"}));
  pass("model.layers", m.layers, "Number of blocks, or of layers (lstm).", between(1, kMaxSize),
       for_models({"gpt", "lstm", "vit", "mixer"}));
  pass("model.width", m.width, "Width of the hidden representation.", between(1, kMaxSize),
       for_models({"gpt", "lstm", "vit", "mixer"}));
  pass("model.heads", m.heads, "Attention heads.", between(1, kMaxSize),
       for_models({"gpt", "vit"}));
  pass("model.kv_heads", m.kv_heads, "Key and value heads. 0: as many as model.heads.",
       between(0, kMaxSize), for_models({"gpt"}));
  pass("model.sequence", m.sequence,
       "Tokens of a training sample, and the context length of a gpt.", between(2, kMaxSize),
       for_models({"gpt", "lstm"}));
}

void expert_settings(ModelSettings& m, SettingsPass& pass) {
  pass("model.experts", m.experts, "Experts that replace the MLP of each block. 0: no experts.",
       between(0, kMaxSize), for_models({"gpt"}));
  pass("model.experts_top_k", m.experts_top_k, "Experts that each token is routed to.",
       between(1, kMaxSize), for_models({"gpt"}));
  pass("model.experts_capacity", m.experts_capacity,
       "Capacity factor of an expert: tokens above this times the even share are dropped. 0: no "
       "limit.",
       at_least(0), for_models({"gpt"}));
  pass("model.experts_balance", m.experts_balance, "Weight of the load-balancing loss of experts.",
       at_least(0), for_models({"gpt"}));
}

void model_settings(ModelSettings& m, SettingsPass& pass) {
  size_settings(m, pass);
  expert_settings(m, pass);
  pass("model.tied", m.tied, "Tie the weights of the token embedding and the output layer.", {},
       for_models({"lstm"}));
  pass("model.dropout", m.dropout, "Dropout probability.", between(0, 0.99),
       for_models({"gpt", "lstm", "vit"}));
  pass("model.hidden", m.hidden, "Widths of the hidden layers.", between(1, kMaxSize),
       for_models({"mlp"}));
  pass("model.stem", m.stem, "First layer of a resnet: 3x3 for small images, 7x7 for large ones.",
       one_of({"3x3", "7x7"}), for_resnets());
  pass("model.patch", m.patch, "Side of a patch in pixels; must divide both sides of the image.",
       between(1, kMaxSize), for_models({"vit", "mixer"}));
  pass("model.pool", m.pool,
       "Input of the classifier: a class token, or the mean over the patches.",
       one_of({"token", "mean"}), for_models({"vit"}));
  pass("model.from", m.from,
       "Folder with a model in Hugging Face's format to start from: config.json, safetensors "
       "files and tokenizer.json. It gives the sizes of the model. Empty: random weights.",
       {}, for_models({"gpt"}));
  pass("model.config", m.config, "Contents of the config.json of model.from; set by weft train.");
}

void data_settings(DataSettings& d, SettingsPass& pass) {
  pass("data.name", d.name, "Data set: fashion-mnist, shapes (generated, needs no files), or text.",
       one_of({"fashion-mnist", "shapes", "text"}));
  pass("data.file", d.file, "Text file, or a folder of text files and folders.", {},
       for_data({"text"}));
  pass("data.tokenizer", d.tokenizer,
       "Tokenizer: bytes, bpe:4096 (trained on the text), or a tokenizer.json.", {},
       for_data({"text"}));
  pass("data.validation", d.validation,
       "Share of the text, at its end, that is held out for evaluation.", between(0.001, 0.9),
       for_data({"text"}));
  pass("data.pack_documents", d.pack_documents,
       "Pack whole documents into samples, without attention between documents. false: cut the "
       "text into windows.",
       {}, for_models({"gpt"}));
  pass("data.dir", d.dir,
       "Folder of fashion-mnist's four IDX files; empty: where Debian's dataset-fashion-mnist puts "
       "them.",
       {}, for_data({"fashion-mnist"}));
  pass("data.seed", d.seed, "Seed of the generated data set.", at_least(0), for_data({"shapes"}));
  pass("data.crop_padding", d.crop_padding,
       "Pixels of padding before a random crop of training images. 0: no crop.", between(0, 127),
       for_images());
  pass("data.flip", d.flip, "Flip training images horizontally at random.", {}, for_images());
}

}  // namespace

void each_setting(RecipeSettings& settings, SettingsPass& pass) {
  model_settings(settings.model, pass);
  data_settings(settings.data, pass);
  pass("train.loss", settings.loss.name, "Loss function.", one_of({"cross_entropy", "nll", "mse"}),
       for_images());
  pass("train.label_smoothing", settings.loss.label_smoothing, "Label smoothing of cross_entropy.",
       between(0, 0.99), for_images());
}

RecipeSettings recipe_settings_of(const Config& config) {
  RecipeSettings settings;
  ReadingPass pass(config);
  each_setting(settings, pass);
  for (const Key& key : config.schema().keys())
    settings.origins.emplace(key.name, config.origin(key.name));
  return settings;
}

data::SetOptions image_set_of(const DataSettings& settings) {
  return {settings.name, settings.dir, settings.seed};
}

}  // namespace weft::train::internal
