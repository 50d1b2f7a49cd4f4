// A trained model for others to use: in a libtorch module without weft's trainer, and in Hugging
// Face's transformers (weft export).
//
//   Net net;
//   weft::load_weights(net, "weights");      // what Trainer::save("weights") wrote
//   weft::load_weights(net, "runs/rings");   // the newest checkpoint of a run
#pragma once

#include <string>

namespace torch::nn {
class Module;
}

namespace weft::train {

struct WeightsOptions {
  // Prefix of the module's names in the files, with its dot: "towers." where the module was the
  // block "towers" of a list.
  std::string prefix = "";
  // Of a run: the best checkpoint (Options::keep_best) instead of the newest.
  bool best = false;
};

// Fills all parameters and buffers of `module`. `from` is a folder that Trainer::save() wrote, a
// checkpoint of any plan, a run's folder, a folder of Hugging Face's layout, or a .safetensors
// file. Values are converted to the module's types. Throws Error(kInvalidArgument) if `from` holds
// no weights, or if a name is missing, is too many or has another shape. So it does if a tensor has
// two names in the module and different values under them. Nothing is changed then. Throws
// Error(kCorrupt), naming the file, for a damaged one.
void load_weights(torch::nn::Module& module, const std::string& from,
                  const WeightsOptions& options = {});
// As above, for a module holder (TORCH_MODULE's Net).
template <class Holder>
auto load_weights(const Holder& holder, const std::string& from, const WeightsOptions& options = {})
    -> decltype(load_weights(*holder.ptr(), from, options)) {
  load_weights(*holder.ptr(), from, options);
}

// Writes the model of a text run's newest checkpoint as a folder that Hugging Face's transformers
// loads: model.safetensors, tokenizer.json, tokenizer_config.json, and config.json last. The
// tokenizer adds no begin token that the model has not been trained with. Throws
// Error(kInvalidArgument) for a folder that holds no text run, an LSTM's, or no checkpoint yet, or
// an output that holds a config.json already; what writing files throws (base/file.h).
void export_huggingface(const std::string& run, const std::string& output);

}  // namespace weft::train
