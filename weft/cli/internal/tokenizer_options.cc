// The options of `weft tokenizer`.
#include <CLI/CLI.hpp>

#include "weft/cli/internal/command_line.h"
#include "weft/cli/internal/descriptions.h"
#include "weft/cli/internal/subcommand.h"

namespace weft::cli {

void add_tokenizer(CLI::App& app, TokenizerCommand& command, int& result) {
  auto* sub = add(app, kTokenizer);
  sub->require_subcommand(1);
  auto* train =
      sub->add_subcommand("train", "Train a byte-pair tokenizer, as GPT-2's, from text files");
  train->add_option("files", command.files, "Text files")->required();
  train
      ->add_option("--vocab", command.vocabulary,
                   "Size of the vocabulary: special tokens, 256 bytes and pairs")
      ->check(CLI::Range(257, 1 << 21));
  train
      ->add_option("--min-count", command.min_count,
                   "Least number of occurrences of a pair that becomes a token")
      ->check(CLI::Range(1, 1 << 30));
  train
      ->add_option(
          "--special", command.specials,
          "Special token, which no text encodes to (default: <|endoftext|>). May be repeated")
      ->allow_extra_args(false);
  train->add_option("-o,--output", command.output,
                    "File to write, in the format of Hugging Face's tokenizer.json");
  train->callback([&] { result = tokenizer_train(command); });
  const char* which = "bytes, a tokenizer.json, or the folder of one";
  auto* encode = sub->add_subcommand(
      "encode", "Print the token ids of a text; with --json each token with its text");
  encode->add_option("tokenizer", command.tokenizer, which)->required();
  encode->add_option("text", command.text, "Text to encode (default: --file, else stdin)");
  encode->add_option("--file", command.files, "File with the text to encode")->expected(1);
  encode->add_flag("--specials", command.recognize, "Recognize special tokens in the text");
  encode->add_flag("--json", command.json, "Print one JSON object for each token");
  encode->callback([&] { result = tokenizer_encode(command); });
  auto* decode = sub->add_subcommand("decode", "Print the text of token ids");
  decode->add_option("tokenizer", command.tokenizer, which)->required();
  decode->add_option("ids", command.ids, "Token ids (default: from stdin)");
  decode->callback([&] { result = tokenizer_decode(command); });
}

}  // namespace weft::cli
