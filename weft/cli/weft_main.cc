#include <unistd.h>

#include <array>
#include <string_view>

#include "weft/base/process/start.h"
#include "weft/cli/commands.h"
#include "weft/cli/internal/early.h"
#include "weft/cli/internal/programs.h"

namespace {

// The other program that runs the command; empty: weft itself.
std::string_view program_for(std::string_view verb, std::string_view word) {
  if (const auto own = weft::cli::own_program(verb, word); !own.empty()) return own;
  if (word == "--help" || word == "-h") return "weft_light";
  for (const std::string_view torch :
       {"train", "run", "doctor", "generate", "export", "tokenizer", "checkpoint"})
    if (verb == torch) return "";
  const bool is_planning = verb == "plan" && (word == "auto" || word == "profile");
  return is_planning ? "" : "weft_light";
}

// Replaces this process before the initializers of libtorch run, which take a tenth of a second.
// Without the other program, weft runs the command or says what is missing. The C library is not
// initialized yet, so this makes system calls only.
void start_other_program(int argc, char** argv, char** environment) {
  const auto word = [&](int at) { return std::string_view(argc > at ? argv[at] : ""); };
  const std::string_view program = program_for(word(1), word(2));
  std::array<char, 4096> path{};
  const ssize_t size = ::readlink("/proc/self/exe", path.data(), path.size());
  if (program.empty() || size <= 0) return;
  const std::string_view self(path.data(), static_cast<std::size_t>(size));
  const std::size_t folder = self.rfind('/') + 1;
  if (folder + program.size() >= path.size()) return;
  for (std::size_t i = 0; i <= program.size(); ++i)
    path[folder + i] = i < program.size() ? program[i] : '\0';
  ::execve(path.data(), weft::cli::arguments_for(program, argv), environment);
}

__attribute__((section(".preinit_array"), used)) void (*const other)(int, char**,
                                                                     char**) = start_other_program;

}  // namespace

int main(int argc, char** argv) { weft::end_process(weft::cli::weft_main(argc, argv)); }
