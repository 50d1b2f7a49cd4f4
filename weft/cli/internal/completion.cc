#include "weft/cli/internal/completion.h"

#include <functional>
#include <vector>

#include "weft/base/error.h"
#include "weft/cli/internal/help.h"

namespace weft::cli {
namespace {

// A command and its words, such as {"schedule", "show"}. `weft` itself has no words.
struct Command {
  std::vector<std::string> words;
  const CLI::App* app;
};

std::vector<Command> commands_of(const CLI::App& app) {
  std::vector<Command> all;
  const std::function<void(const Command&)> add = [&](const Command& command) {
    all.push_back(command);
    for (const CLI::App* sub : command.app->get_subcommands({})) {
      auto words = command.words;
      words.push_back(sub->get_name());
      add({words, sub});
    }
  };
  add({{}, &app});
  return all;
}

std::string joined(const std::vector<std::string>& words, const std::string& before = " ") {
  std::string text;
  for (const auto& word : words) text += before + word;
  return text;
}

// The options that can follow the command: long names such as "--ranks", and short names.
std::vector<std::string> flags_of(const CLI::App& app) {
  std::vector<std::string> flags;
  for (const CLI::Option* option : app.get_options()) {
    for (const auto& name : option->get_lnames()) flags.push_back("--" + name);
    for (const auto& name : option->get_snames()) flags.push_back("-" + name);
  }
  return flags;
}

// zsh runs this script too. There `path` is the search path, and a letter after a colon modifies a
// word: the script avoids both.
std::string bash(const CLI::App& app) {
  std::string paths, choices;
  for (const auto& command : commands_of(app)) {
    std::vector<std::string> words = flags_of(*command.app);
    for (const CLI::App* sub : command.app->get_subcommands({})) words.push_back(sub->get_name());
    const std::string path = joined(command.words);
    if (!path.empty()) paths += (paths.empty() ? "" : " | ") + ("\"" + path + "\"");
    choices += "    \"" + path + "\") words=\"" + joined(words).substr(1) + "\" ;;\n";
  }
  return "_weft() {\n"
         "  local current=${COMP_WORDS[COMP_CWORD]} place=\"\" word words=\"\"\n"
         "  for word in \"${COMP_WORDS[@]:1:$((COMP_CWORD-1))}\"; do\n"
         "    case \"$place $word\" in " +
         paths +
         ") place=\"$place $word\" ;; esac\n"
         "  done\n"
         "  case \"$place\" in\n" +
         choices +
         "  esac\n"
         "  COMPREPLY=($(compgen -W \"$words\" -- \"$current\"))\n"
         "}\n"
         "complete -o default -F _weft weft\n";
}

// The text in single quotes for a shell.
std::string in_quotes(const std::string& text) {
  std::string safe = "'";
  for (const char c : text) safe += c == '\'' ? "\\'" : c == '\\' ? "\\\\" : std::string(1, c);
  return safe + "'";
}

std::string fish(const CLI::App& app) {
  std::string script = "complete -c weft -n __fish_use_subcommand -f\n";
  for (const auto& command : commands_of(app)) {
    std::string when = "__fish_use_subcommand";
    if (!command.words.empty()) {
      when = "__fish_seen_subcommand_from " + command.words.back();
      if (command.words.size() > 1)
        when += "; and __fish_seen_subcommand_from " + command.words.front();
    }
    const std::string head = "complete -c weft -n " + in_quotes(when);
    for (const CLI::App* sub : command.app->get_subcommands({})) {
      script +=
          head + " -f -a " + sub->get_name() + " -d " + in_quotes(sub->get_description()) + "\n";
    }
    for (const CLI::Option* option : command.app->get_options()) {
      for (const auto& name : option->get_lnames()) {
        script += head + " -l " + name + (option->get_items_expected_max() > 0 ? " -r" : "") +
                  " -d " + in_quotes(option->get_description()) + "\n";
      }
    }
  }
  return script;
}

// Text of a roff page: backslashes and lines that begin like a request are escaped.
std::string roff(const std::string& text) {
  std::string safe;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const bool begins = i == 0 || text[i - 1] == '\n';
    if (begins && (text[i] == '.' || text[i] == '\'')) safe += "\\&";
    safe += text[i] == '\\' ? "\\e" : text[i] == '-' ? "\\-" : std::string(1, text[i]);
  }
  return safe;
}

std::string section(const Command& command) {
  const std::string name = "weft" + joined(command.words);
  std::string text = ".SS " + roff(name) + "\n" + roff(command.app->get_description()) + "\n";
  for (const CLI::Option* option : command.app->get_options()) {
    const std::string value = value_of(*option);
    text += ".TP\n\\fB" + roff(names_of(*option)) + "\\fR" +
            (value.empty() ? "" : " \\fI" + roff(value) + "\\fR") + "\n" +
            roff(description_of(*option)) + "\n";
  }
  const std::string footer = command.app->get_footer();
  if (!footer.empty()) text += ".PP\n.nf\n" + roff(footer) + "\n.fi\n";
  return text;
}

}  // namespace

std::string completion_script(const CLI::App& app, const std::string& shell) {
  if (shell == "bash") return bash(app);
  if (shell == "zsh") {
    // If this is a file in $fpath, zsh runs it at the first Tab. It must define the function and
    // also answer that Tab.
    return "#compdef weft\nautoload -U +X bashcompinit && bashcompinit\n" + bash(app) +
           "if [[ ${funcstack[1]-} == _weft ]]; then _bash_complete -o default -F _weft; fi\n";
  }
  if (shell == "fish") return fish(app);
  throw Error(Errc::kInvalidArgument,
              "weft completion: unknown shell \"" + shell + "\"; use bash, zsh or fish");
}

std::string manual_page(const CLI::App& app, const std::string& version) {
  std::string page =
      ".TH WEFT 1 \"\" \"weft " + version + "\" \"User Commands\"\n.SH NAME\nweft \\- " +
      roff(app.get_description()) +
      "\n.SH SYNOPSIS\n\\fBweft\\fR \\fICOMMAND\\fR [\\fIOPTION\\fR ...]\n.SH COMMANDS\n";
  for (const auto& command : commands_of(app)) {
    if (!command.words.empty()) page += section(command);
  }
  return page +
         ".SH EXIT STATUS\n0 success; 1 a check failed; 2 a wrong flag, key or value; 65 damaged "
         "data; 70 a bug of weft;\n"
         "200 to 203 a timeout, a lost peer, an aborted or an unavailable operation: a retry may "
         "help.\n";
}

}  // namespace weft::cli
