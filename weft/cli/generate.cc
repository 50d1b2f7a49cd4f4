// `weft generate`: text from a trained model.
#include <filesystem>
#include <iostream>

#include "weft/cli/commands.h"
#include "weft/train/generate.h"

namespace weft::cli {

int generate(const GenerateCommand& command) {
  std::error_code ignored;
  const bool is_folder = std::filesystem::is_directory(command.run, ignored);
  const train::GenerateOptions options{command.prompt, command.tokens, command.temperature, command.top_k, command.seed};
  std::cout << command.prompt;
  train::generate(is_folder ? command.run : "runs/" + command.run, options,
                  [](std::string_view piece) { std::cout << piece << std::flush; });
  std::cout << std::endl;
  return 0;
}

}  // namespace weft::cli
