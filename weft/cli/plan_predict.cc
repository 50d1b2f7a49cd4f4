// `weft plan predict`: predicted steps of scenarios.
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iostream>

#include "weft/base/error.h"
#include "weft/cli/commands.h"
#include "weft/plan/scenario/scenario.h"

namespace weft::cli {
namespace {

constexpr std::size_t kMaxLine = 1 << 17;

// Reads a line and keeps at most kMaxLine bytes of it. parse_scenario() refuses longer ones.
bool next_line(std::istream& in, std::string& line) {
  line.clear();
  int c = in.rdbuf()->sbumpc();
  if (c == EOF) return false;
  for (; c != EOF && c != '\n'; c = in.rdbuf()->sbumpc())
    if (line.size() < kMaxLine) line += static_cast<char>(c);
  return true;
}

}  // namespace

int plan_predict(const PredictCommand& command) {
  std::ifstream file;
  const bool standard = command.file == "-";
  if (!standard) {
    std::error_code ignored;
    if (!std::filesystem::is_directory(command.file, ignored)) file.open(command.file);
    WEFT_REQUIRE(file.is_open(), command.file +
                                     " cannot be read; give a file with one scenario "
                                     "a line, or - for stdin");
  }
  std::istream& in = standard ? std::cin : file;
  int number = 0, failed = 0;
  for (std::string line; next_line(in, line);) {
    ++number;
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    const std::string name = "line " + std::to_string(number);
    const plan::Answer answer = plan::answer_line(line, name);
    std::cout << answer.json << '\n';
    if (answer.error.empty()) continue;
    ++failed;
    const bool named = answer.error.rfind(name, 0) == 0;
    std::cerr << "weft: " << command.file << ": " << (named ? "" : name + ": ") << answer.error
              << '\n';
  }
  return failed == 0 ? 0 : exit_code(Errc::kInvalidArgument);
}

}  // namespace weft::cli
