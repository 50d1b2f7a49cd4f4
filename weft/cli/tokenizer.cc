// `weft tokenizer`: trains tokenizers on files, encodes text into tokens and decodes tokens.
#include <algorithm>
#include <charconv>
#include <filesystem>
#include <iostream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "weft/base/error.h"
#include "weft/base/file.h"
#include "weft/base/json/json.h"
#include "weft/cli/commands.h"
#include "weft/cli/internal/output_file.h"
#include "weft/data/text/tokenizer.h"
#include "weft/data/text/train_bpe.h"

namespace weft::cli {
namespace {

namespace fs = std::filesystem;
namespace text = data::text;

constexpr std::size_t kMaxBytes = std::size_t{1} << 30;

// `name`: "bytes", a tokenizer.json, or a folder with a tokenizer.json.
std::unique_ptr<text::Tokenizer> open_tokenizer(const std::string& name) {
  if (name == "bytes") return text::byte_tokenizer();
  std::error_code ignored;
  if (!fs::is_directory(name, ignored)) return text::load_tokenizer(name);
  WEFT_REQUIRE(fs::exists(name + "/tokenizer.json", ignored),
               name +
                   " has no tokenizer.json; a run with data.tokenizer = \"bytes\" has none: "
                   "say bytes instead of a file");
  return text::load_tokenizer(name + "/tokenizer.json");
}

std::string standard_input() {
  return {std::istreambuf_iterator<char>(std::cin), std::istreambuf_iterator<char>()};
}

// Parses token ids separated by blanks or commas.
std::vector<text::TokenId> ids_of(const std::string& words) {
  std::vector<text::TokenId> ids;
  const auto blank = [](char c) {
    return c == ' ' || c == ',' || c == '\n' || c == '\t' || c == '\r';
  };
  for (const char *at = words.data(), *end = at + words.size(); at != end;) {
    if (blank(*at)) {
      ++at;
      continue;
    }
    text::TokenId id = 0;
    const auto [stopped, error] = std::from_chars(at, end, id);
    const bool whole = error == std::errc() && (stopped == end || blank(*stopped));
    WEFT_REQUIRE(whole, "weft tokenizer decode: \"" +
                            std::string(at, std::find_if(at, end, blank)) +
                            "\" is no token's number");
    ids.push_back(id);
    at = stopped;
  }
  return ids;
}

}  // namespace

int tokenizer_train(const TokenizerCommand& command) {
  text::BpeTrainOptions options;
  options.vocab_size = command.vocabulary;
  options.min_count = command.min_count;
  if (!command.specials.empty()) options.specials = command.specials;
  check_output("--output", command.output, command.files);  // before the training, not after it
  const std::string json = text::train_bpe(command.files, options);
  const auto tokenizer = text::parse_tokenizer(json, command.output);
  write_file_atomic(command.output, json);
  std::int64_t bytes = 0, tokens = 0;
  for (const std::string& file : command.files) {
    const std::string content = read_file(file, options.max_bytes);
    bytes += static_cast<std::int64_t>(content.size());
    tokens += static_cast<std::int64_t>(tokenizer->encode(content).size());
  }
  std::cout << command.output << ": " << tokenizer->vocab_size() << " tokens; the files' " << bytes
            << " bytes are " << tokens << '\n';
  return 0;
}

int tokenizer_encode(const TokenizerCommand& command) {
  WEFT_REQUIRE(command.text.empty() || command.files.empty(),
               "weft tokenizer encode: give a text or --file, not both");
  const auto tokenizer = open_tokenizer(command.tokenizer);
  const bool given = !command.text.empty(), file = !command.files.empty();
  const std::string content = given  ? command.text
                              : file ? read_file(command.files.front(), kMaxBytes)
                                     : standard_input();
  const auto ids = tokenizer->encode(
      content, command.recognize ? text::Specials::kRecognize : text::Specials::kAsText);
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (command.json) {
      const auto before =
          i == 0 ? std::vector<text::TokenId>{} : std::vector<text::TokenId>{ids[i - 1]};
      std::cout << json_line({{"id", ids[i]}, {"text", tokenizer->decode_after(before, {ids[i]})}})
                << '\n';
    } else {
      std::cout << (i == 0 ? "" : " ") << ids[i];
    }
  }
  if (!command.json) std::cout << '\n';
  return 0;
}

int tokenizer_decode(const TokenizerCommand& command) {
  const auto tokenizer = open_tokenizer(command.tokenizer);
  std::string words;
  for (const std::string& word : command.ids) words += word + " ";
  std::cout << tokenizer->decode(ids_of(command.ids.empty() ? standard_input() : words));
  return 0;
}

}  // namespace weft::cli
