// Runs the benches without the rest of the command line.
#include <cstdlib>
#include <iostream>
#include <sstream>

#include "weft/base/error.h"
#include "weft/cli/bench.h"

namespace {

std::vector<std::string> split(const std::string& list) {
  std::vector<std::string> parts;
  std::istringstream in(list);
  for (std::string part; std::getline(in, part, ',');) parts.push_back(part);
  return parts;
}

weft::cli::BenchOptions parse(int argc, char** argv) {
  weft::cli::BenchOptions options;
  options.what = argc > 1 ? argv[1] : "collectives";
  for (int i = 2; i < argc; ++i) {
    const std::string name = argv[i], value = name != "--json" && i + 1 < argc ? argv[++i] : "";
    if (name == "--json") options.json = true;
    if (name == "--ranks") options.ranks = std::atoi(value.c_str());
    if (name == "--rounds") options.rounds = std::atoi(value.c_str());
    if (name == "--batch") options.batch = std::atoi(value.c_str());
    if (name == "--transport") options.transport = value;
    if (name == "--ops") options.ops = split(value);
    if (name == "--models") options.models = split(value);
    if (name == "--impls") options.impls = split(value);
    if (name == "--sizes") {
      for (const auto& size : split(value)) options.sizes.push_back(std::strtoull(size.c_str(), nullptr, 10));
    }
  }
  return options;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return weft::cli::bench(parse(argc, argv));
  } catch (const weft::Error& error) {
    std::cerr << error.what() << "\n";
    return weft::exit_code(error.code());
  }
}
