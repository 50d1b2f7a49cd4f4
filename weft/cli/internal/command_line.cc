#include "weft/cli/internal/command_line.h"

#include <iostream>

#include "weft/base/config.h"
#include "weft/base/json/error_file.h"

namespace weft::cli {

std::string hint_for(const CLI::App& app, const std::string& word) {
  const CLI::App* at = &app;
  while (!at->get_subcommands().empty()) at = at->get_subcommands().front();
  std::vector<std::string> known;
  for (const auto* sub : at->get_subcommands({})) known.push_back(sub->get_name());
  for (const auto* option : at->get_options()) {
    for (const auto& name : option->get_lnames()) known.push_back("--" + name);
  }
  const auto near = nearest(word, known);
  return near ? "; did you mean \"" + *near + "\"?" : "; see weft --help";
}

namespace {

// Prints CLI11's error as one line and returns the exit code.
int usage_error(const CLI::App& app, const CLI::ParseError& error) {
  std::string text = error.what();
  if (dynamic_cast<const CLI::ExtrasError*>(&error) != nullptr ||
      dynamic_cast<const CLI::RequiredError*>(&error) != nullptr) {
    const auto rest = app.remaining(true);
    const std::string word = !rest.empty() ? rest.front() : "";
    if (!word.empty())
      text = (word[0] == '-' ? "unknown option \"" : "unknown command \"") + word + "\"" +
             hint_for(app, word);
  }
  std::cerr << "weft: " << text.substr(0, text.find('\n')) << '\n';
  return exit_code(Errc::kInvalidArgument);
}

}  // namespace

int fail(const Error& error) { return fail_with(error); }

int parse_and_run(CLI::App& app, int argc, char** argv, const int& result) {
  try {
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
