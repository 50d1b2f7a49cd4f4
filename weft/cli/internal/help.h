// The help of weft and weft-bench: usage lines, and options with their ranges and defaults.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <utility>

namespace weft::cli {

// An application's subcommands take over its formatter when they are added. A subcommand that
// takes a program or other words behind its options gets a formatter of its own.
class HelpFormatter : public CLI::Formatter {
 public:
  // `rest`: words that end the usage line, such as "PROGRAM [ARGUMENTS]...".
  explicit HelpFormatter(std::string rest = "") : rest_(std::move(rest)) {}

  std::string make_usage(const CLI::App* app, std::string name) const override;
  std::string make_option_name(const CLI::Option* option, bool is_positional) const override;
  std::string make_option_opts(const CLI::Option* option) const override;
  std::string make_option_desc(const CLI::Option* option) const override;

 private:
  std::string rest_;
};

// A type's name and what a validator adds to it: "INT" and "INT in [1 - 256]".
struct TypeText {
  std::string name, check;
};
TypeText type_of(const CLI::Option& option);
bool takes_values(const CLI::Option& option);

// "-n,--ranks", "--resume"; a positional in capitals.
std::string names_of(const CLI::Option& option);
// What follows the names: "INT", "{warn,replace,end}", "TEXT ..."; empty for flags.
std::string value_of(const CLI::Option& option);
// The description, with the range and the default in parentheses.
std::string description_of(const CLI::Option& option);

}  // namespace weft::cli
