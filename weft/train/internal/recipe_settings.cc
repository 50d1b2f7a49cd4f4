#include "weft/train/internal/recipe_settings.h"

#include "weft/data/image_set.h"
#include "weft/train/internal/limits.h"

namespace weft::train::internal {
namespace {

// Products of two such sizes, and a few more, fit into 64 bits.
constexpr double kMaxSize = 1e8;

UsedBy for_images() { return for_data({"fashion-mnist", "shapes"}); }

void size_settings(ModelSettings& m, SettingsVisitor& visit) {
  visit("model.name", m.name,
        "Model: cnn, mlp, resnet18, 34, 50, 101, 152, vit or mixer for images; gpt or lstm for a "
        "text.");
  visit.choice("model.family", m.family,
               "Kind of gpt: gpt2 (LayerNorm, learned positions, GELU) or llama (RMSNorm, rotary "
               "positions, SwiGLU).",
               {"gpt2", "llama"}, for_models({"gpt"}));
  visit("model.layers", m.layers, "Number of blocks, or of layers (lstm).", between(1, kMaxSize),
        for_models({"gpt", "lstm", "vit", "mixer"}));
  visit("model.width", m.width, "Width of the hidden representation.", between(1, kMaxSize),
        for_models({"gpt", "lstm", "vit", "mixer"}));
  visit("model.heads", m.heads, "Attention heads.", between(1, kMaxSize),
        for_models({"gpt", "vit"}));
  visit("model.kv_heads", m.kv_heads, "Key and value heads. 0: as many as model.heads.",
        between(0, kMaxSize), for_models({"gpt"}));
  visit("model.sequence", m.sequence,
        "Tokens of a training sample, and the context length of a gpt.", between(2, kMaxSize),
        for_models({"gpt", "lstm"}));
}

void expert_settings(ModelSettings& m, SettingsVisitor& visit) {
  visit("model.experts", m.experts, "Experts that replace the MLP of each block. 0: no experts.",
        between(0, kMaxSize), for_models({"gpt"}));
  visit("model.experts_top_k", m.experts_top_k, "Experts that each token is routed to.",
        between(1, kMaxSize), for_models({"gpt"}));
  visit("model.experts_capacity", m.experts_capacity,
        "Capacity factor of an expert: tokens above this times the even share are dropped. 0: no "
        "limit.",
        at_least(0), for_models({"gpt"}));
  visit("model.experts_balance", m.experts_balance, "Weight of the load-balancing loss of experts.",
        at_least(0), for_models({"gpt"}));
}

void model_settings(ModelSettings& m, SettingsVisitor& visit) {
  size_settings(m, visit);
  expert_settings(m, visit);
  visit("model.tied", m.tied, "Tie the weights of the token embedding and the output layer.", {},
        for_models({"lstm"}));
  visit("model.dropout", m.dropout, "Dropout probability.", between(0, 0.99),
        for_models({"gpt", "lstm", "vit"}));
  visit("model.hidden", m.hidden, "Widths of the hidden layers.", between(1, kMaxSize),
        for_models({"mlp"}));
  visit("model.stem", m.stem, "First layer of a resnet: 3x3 for small images, 7x7 for large ones.",
        one_of({"3x3", "7x7"}), for_resnets());
  visit("model.patch", m.patch, "Side of a patch in pixels; must divide both sides of the image.",
        between(1, kMaxSize), for_models({"vit", "mixer"}));
  visit("model.pool", m.pool,
        "Input of the classifier: a class token, or the mean over the patches.",
        one_of({"token", "mean"}), for_models({"vit"}));
  visit("model.from", m.from,
        "Folder with a model in Hugging Face's format to start from: config.json, safetensors "
        "files and tokenizer.json. It gives the sizes of the model. Empty: random weights.",
        {}, for_models({"gpt"}));
  visit("model.config", m.config, "Contents of the config.json of model.from; set by weft train.");
}

void data_settings(DataSettings& d, SettingsVisitor& visit) {
  visit("data.name", d.name,
        "Data set: fashion-mnist, shapes (generated, needs no files), or text.",
        one_of({"fashion-mnist", "shapes", "text"}));
  visit("data.file", d.file, "Text file, or a folder of text files and folders.", {},
        for_data({"text"}));
  visit("data.tokenizer", d.tokenizer,
        "Tokenizer: bytes, bpe:4096 (trained on the text), or a tokenizer.json.", {},
        for_data({"text"}));
  visit("data.validation", d.validation,
        "Share of the text, at its end, that is held out for evaluation.", between(0.001, 0.9),
        for_data({"text"}));
  visit("data.pack_documents", d.pack_documents,
        "Pack whole documents into samples, without attention between documents. false: cut the "
        "text into windows.",
        {}, for_models({"gpt"}));
  visit(
      "data.dir", d.dir,
      "Folder of fashion-mnist's four IDX files; empty: where Debian's dataset-fashion-mnist puts "
      "them.",
      {}, for_data({"fashion-mnist"}));
  visit("data.seed", d.seed, "Seed of the generated data set.", at_least(0), for_data({"shapes"}));
  visit("data.crop_padding", d.crop_padding,
        "Pixels of padding before a random crop of training images. 0: no crop.", between(0, 127),
        for_images());
  visit("data.flip", d.flip, "Flip training images horizontally at random.", {}, for_images());
}

}  // namespace

void each_setting(RecipeSettings& settings, SettingsVisitor& visit) {
  model_settings(settings.model, visit);
  data_settings(settings.data, visit);
  visit("train.loss", settings.loss.name,
        "Loss: cross_entropy, mse, or nll (cross_entropy without label smoothing).",
        one_of({"cross_entropy", "nll", "mse"}), for_images());
  visit("train.label_smoothing", settings.loss.label_smoothing, "Label smoothing of cross_entropy.",
        between(0, 0.99), for_images());
}

RecipeSettings recipe_settings_of(const Config& config) {
  RecipeSettings settings;
  ReadingVisitor visit(config);
  each_setting(settings, visit);
  for (const Key& key : config.schema().keys())
    settings.origins.emplace(key.name, config.origin(key.name));
  return settings;
}

data::SetOptions image_set_of(const DataSettings& settings) {
  return {settings.name, settings.dir, settings.seed};
}

}  // namespace weft::train::internal
