// weft_recipe_keys_doc PAGE [--check]: writes docs/recipe-keys.md, a table for each table of a
// recipe. --check writes nothing, and fails if the page differs.
#include <algorithm>
#include <iostream>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "weft/base/config.h"
#include "weft/base/error.h"
#include "weft/base/file.h"
#include "weft/base/text/words.h"
#include "weft/train/recipe.h"

namespace weft::docs {
namespace {

constexpr std::size_t kMaxPageBytes = 1 << 20;

constexpr const char* kTop =
    "# Recipe keys\n\n"
    "The keys of `recipe.toml` and of `weft train --set table.key=value`. The files of\n"
    "`weft::train::load_options()` have the tables `train`, `optimizer`, `schedule`,\n"
    "`strategy`, `parallel` and `run`, and the keys `data.prefetch` and\n"
    "`model.sync_batch_norm`.\n";

// A text as Markdown shows it.
std::string escaped(std::string_view text) {
  std::string result;
  for (const char c : text) {
    if (std::string_view("\\*_<>[]#|").find(c) != std::string_view::npos) result += '\\';
    result += c;
  }
  return result;
}

// The models, data sets … that use the key, unless all do.
std::string users(const UsedBy& used_by) {
  if (used_by.key.empty()) return "";
  return " Only with `" + used_by.key + "` = " + escaped(joined(used_by.values, ", ")) + ".";
}

std::string page() {
  const Schema schema = train::recipe_schema();
  std::vector<std::string> tables;  // in the order of the keys
  std::map<std::string, std::string> rows;
  for (const Config::Row& key : Config(schema).describe()) {
    const std::size_t dot = key.key.find('.');
    const std::string table = key.key.substr(0, dot);
    if (std::find(tables.begin(), tables.end(), table) == tables.end()) tables.push_back(table);
    rows[table] += "| `" + key.key.substr(dot + 1) + "` | `" + key.fallback + "` | " +
                   escaped(key.help) + users(schema.find(key.key)->used_by) + " |\n";
  }
  std::string text = kTop;
  for (const std::string& table : tables)
    text +=
        "\n## " + table + "\n\n| key | default | meaning |\n| --- | --- | --- |\n" + rows[table];
  return text;
}

}  // namespace
}  // namespace weft::docs

int main(int argc, char** argv) try {
  const bool checks = argc == 3 && argv[2] == std::string_view("--check");
  if (argc != 2 && !checks) {
    std::cerr << "usage: weft_recipe_keys_doc PAGE [--check]\n";
    return 2;
  }
  const std::string path = argv[1], text = weft::docs::page();
  if (!checks) {
    weft::write_file_atomic(path, text);
  } else if (weft::read_file(path, weft::docs::kMaxPageBytes) != text) {
    std::cerr << path << " differs from the keys of a recipe; run ./dev docs\n";
    return 1;
  }
  return 0;
} catch (const weft::Error& error) {
  std::cerr << "weft_recipe_keys_doc: " << error.what() << '\n';
  return weft::exit_code(error.code());
}
