#include "weft/cli/internal/command_line.h"

#include <cmath>
#include <cstddef>
#include <cstdlib>
#include <iostream>
#include <set>
#include <string>

#include "weft/base/config.h"
#include "weft/base/json/error_file.h"
#include "weft/cli/internal/components.h"
#include "weft/cli/internal/help.h"

namespace weft::cli {

namespace {

// The subcommand that was parsed last.
const CLI::App& innermost(const CLI::App& app) {
  const CLI::App* at = &app;
  while (!at->get_subcommands().empty()) at = at->get_subcommands().front();
  return *at;
}

// The words of the command line that lead to the subcommand, each with a space behind it.
std::string words_to(const CLI::App& app) {
  const CLI::App* above = app.get_parent();
  return above == nullptr ? "" : words_to(*above) + app.get_name() + " ";
}

// "; did you mean …?" with the nearest subcommand or option.
std::string hint_for(const CLI::App& app, const std::string& word) {
  std::vector<std::string> known;
  for (const auto* sub : app.get_subcommands({})) known.push_back(sub->get_name());
  for (const auto* option : app.get_options()) {
    for (const auto& name : option->get_lnames()) known.push_back("--" + name);
  }
  const auto near = nearest(word, known);
  return near ? "; did you mean \"" + *near + "\"?" : "; see weft --help";
}

}  // namespace

Error unknown(const CLI::App& app, const std::string& word) {
  const CLI::App& at = innermost(app);
  if (auto error = absent(words_to(at) + word.substr(0, word.find('=')))) return *error;
  const std::string kind = word.starts_with('-') ? "unknown option" : "unknown command";
  return Error(Errc::kInvalidArgument, kind + " \"" + word + "\"" + hint_for(at, word));
}

namespace {

// Prints CLI11's error as one line and returns the exit code.
int usage_error(const CLI::App& app, const CLI::ParseError& error) {
  std::string text = error.what();
  if (dynamic_cast<const CLI::ExtrasError*>(&error) != nullptr ||
      dynamic_cast<const CLI::RequiredError*>(&error) != nullptr) {
    const auto rest = app.remaining(true);
    const std::string word = !rest.empty() ? rest.front() : "";
    if (!word.empty()) text = unknown(app, word).message();
  }
  std::cerr << "weft: " << text.substr(0, text.find('\n')) << '\n';
  return exit_code(Errc::kInvalidArgument);
}

// "10" for "010", which CLI11 would read as an octal number.
std::string without_leading_zeros(const std::string& value) {
  const std::size_t sign = value.starts_with('-') || value.starts_with('+') ? 1 : 0;
  const auto first = value.find_first_not_of('0', sign);
  const bool is_digit = first != std::string::npos && value[first] >= '0' && value[first] <= '9';
  return is_digit ? value.substr(0, sign) + value.substr(first) : value;
}

// Checks that CLI11's own lack. An empty value is most likely a variable that is not set, and
// CLI::Range takes "nan".
void check_values(CLI::App& app) {
  static const std::set<std::string> kNumbers{"FLOAT", "FRACTION", "INT", "MB",
                                              "N",     "SECONDS",  "UINT"};
  for (CLI::Option* const option : app.get_options()) {
    if (!takes_values(*option)) continue;
    const std::string type = type_of(*option).name;
    const bool is_number = kNumbers.count(type) > 0;
    if (is_number) option->transform(without_leading_zeros);
    const bool is_list = option->get_positional() && option->get_items_expected_max() > 1;
    if (is_list || option->check_lname("prompt")) continue;
    const std::string wanted = type == "SECONDS" ? "expected a number of seconds, got "
                               : is_number       ? "expected a number, got "
                                                 : "expected a value, got ";
    option->check([is_number, wanted](const std::string& value) {
      if (value.empty()) return wanted + "nothing";
      const bool is_nan = is_number && std::isnan(std::strtod(value.c_str(), nullptr));
      return is_nan ? wanted + value : std::string();
    });
  }
  for (CLI::App* const sub : app.get_subcommands([](CLI::App*) { return true; }))
    check_values(*sub);
}

}  // namespace

int fail(const Error& error) { return fail_with(error); }

int parse_and_run(CLI::App& app, int argc, char** argv, const int& result) {
  try {
    check_values(app);
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp& help) {
    return app.exit(help);
  } catch (const CLI::CallForVersion& version) {
    return app.exit(version);
  } catch (const CLI::ParseError& error) {
    return usage_error(app, error);
  } catch (const std::exception& error) {
    return fail_with(error);
  }
  return result;
}

}  // namespace weft::cli
