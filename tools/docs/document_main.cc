// weft_algorithms_doc DOCS: writes docs/algorithms.md, docs/pipelines.md, docs/parallelism.md and
// their pictures into the folder DOCS.
#include <filesystem>
#include <iostream>

#include "tools/docs/document.h"
#include "weft/base/error.h"
#include "weft/base/file.h"

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "usage: weft_algorithms_doc DOCS\n";
    return 2;
  }
  try {
    auto files = weft::docs::algorithms();
    for (auto& file : weft::docs::pipelines()) files.push_back(std::move(file));
    for (auto& file : weft::docs::forms()) files.push_back(std::move(file));
    for (const auto& file : files) {
      const std::filesystem::path path = std::filesystem::path(argv[1]) / file.path;
      std::filesystem::create_directories(path.parent_path());
      weft::write_file_atomic(path.string(), file.text);
    }
  } catch (const weft::Error& error) {
    std::cerr << "weft_algorithms_doc: " << error.what() << '\n';
    return weft::exit_code(error.code());
  }
  return 0;
}
