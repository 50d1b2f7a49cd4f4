// `weft generate` and `weft export`: generate text with a trained model, and export the model.
#include "weft/train/generate.h"

#include <filesystem>
#include <iostream>

#include "weft/cli/commands.h"
#include "weft/cli/internal/run_name.h"
#include "weft/comm/environment.h"
#include "weft/comm/init.h"
#include "weft/train/export.h"

namespace weft::cli {
namespace {

// The folder of a run, or one of Hugging Face. A name without a folder is a run's.
std::string model_folder(const std::string& name) {
  std::error_code ignored;
  if (std::filesystem::exists(name + "/config.json", ignored)) return name;
  const std::string run = run_folder_of(name);
  return std::filesystem::exists(run, ignored) ? run : "runs/" + run;
}

}  // namespace

int generate(const GenerateCommand& command) {
  train::GenerateOptions options{command.prompt,
                                 command.tokens,
                                 command.temperature,
                                 command.top_k,
                                 command.top_p,
                                 command.seed,
                                 {}};
  options.stop = command.stop;
  // Under a launcher, the layers are split over the ranks, and rank 0 prints.
  parallel::TensorParallel tp;
  if (comm::discover(comm::Environment::process()).source != "alone")
    tp = parallel::TensorParallel(comm::init(), 1);
  bool started = false;
  const auto print = [&](std::string_view piece) {
    if (tp.rank() == 0) std::cout << (started ? "" : command.prompt) << piece << std::flush;
    started = true;
  };
  train::generate(model_folder(command.run), options, print, tp);
  if (tp.rank() == 0) std::cout << (started ? "" : command.prompt) << std::endl;
  return 0;
}

int export_model(const ExportCommand& command) {
  train::export_huggingface(model_folder(command.run), command.output);
  std::cout << command.output << ": config.json, model.safetensors, tokenizer.json\n";
  return 0;
}

}  // namespace weft::cli
