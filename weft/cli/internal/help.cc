#include "weft/cli/internal/help.h"

#include <algorithm>
#include <cctype>

namespace weft::cli {
namespace {

// "1 to 256" of "INT in [1 - 256]".
std::string range_of(const std::string& check) {
  constexpr std::string_view kIn = " in [";
  const auto begin = check.find(kIn), dash = check.find(" - ");
  if (begin == std::string::npos || dash == std::string::npos || !check.ends_with(']')) return "";
  const auto from = begin + kIn.size();
  return check.substr(from, dash - from) + " to " + check.substr(dash + 3, check.size() - dash - 4);
}

}  // namespace

TypeText type_of(const CLI::Option& option) {
  const std::string text = option.get_type_name();
  const auto colon = text.find(':');
  if (colon == std::string::npos) return {text, ""};
  return {text.substr(0, colon), text.substr(colon + 1)};
}

bool takes_values(const CLI::Option& option) { return option.get_type_size() != 0; }

std::string names_of(const CLI::Option& option) {
  std::string names = option.get_name(option.get_positional(), true);
  // CLI11 adds the value that a flag stands for: "--resume{true}".
  for (auto open = names.find('{'); open != std::string::npos; open = names.find('{'))
    names.erase(open, names.find('}', open) + 1 - open);
  if (option.get_positional()) {
    std::transform(names.begin(), names.end(), names.begin(),
                   [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
  }
  return names;
}

std::string value_of(const CLI::Option& option) {
  if (!option.get_option_text().empty()) return option.get_option_text();
  if (!takes_values(option)) return "";
  const TypeText type = type_of(option);
  std::string text = type.check.starts_with('{') ? type.check
                     : type.name == "UINT"       ? "INT"
                                                 : type.name;
  if (type.check.starts_with("SIZE")) text = "SIZE";
  if (option.get_positional()) text.clear();
  const bool many = option.get_expected_max() == CLI::detail::expected_max_vector_size;
  return text + (many ? (text.empty() ? "..." : " ...") : "");
}

std::string description_of(const CLI::Option& option) {
  std::string text = option.get_description();
  if (!takes_values(option)) return text;
  std::string more = range_of(type_of(option).check);
  const std::string& value = option.get_default_str();
  const bool told = text.find("(default") != std::string::npos;
  if (!value.empty() && !option.get_required() && !told)
    more += (more.empty() ? "" : "; ") + ("default: " + value);
  return more.empty() ? text : text + " (" + more + ")";
}

std::string HelpFormatter::make_usage(const CLI::App* app, std::string name) const {
  std::string usage = CLI::Formatter::make_usage(app, std::move(name));
  if (rest_.empty()) return usage;
  return usage.substr(0, usage.find_last_not_of('\n') + 1) + " " + rest_ + "\n";
}

std::string HelpFormatter::make_option_name(const CLI::Option* option, bool) const {
  return names_of(*option);
}

std::string HelpFormatter::make_option_opts(const CLI::Option* option) const {
  const std::string value = value_of(*option);
  return value.empty() ? "" : " " + value;
}

std::string HelpFormatter::make_option_desc(const CLI::Option* option) const {
  return description_of(*option);
}

}  // namespace weft::cli
