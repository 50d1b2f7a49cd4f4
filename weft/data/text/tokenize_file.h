// From text files to a token file, once, document by document: memory is that of the longest
// document.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "weft/data/text/tokenizer.h"

namespace weft::data::text {

enum class Documents {
  kFile,   // each file is one
  kLine,   // each line is one, without its line feed; empty lines are none
  kBlank,  // blank lines part them; the line feeds within a document are its own
};

struct TokenizeOptions {
  Documents documents = Documents::kFile;
  std::string end_token = "<|endoftext|>";  // put behind each document, by id_of(); empty: none
  Specials specials = Specials::kAsText;
  std::size_t max_document_bytes = std::size_t{64} << 20;
};

struct TokenizeReport {
  std::int64_t documents = 0;
  std::int64_t bytes = 0;   // of the documents
  std::int64_t tokens = 0;  // end tokens counted
};

// Reads the files in order and writes `output`, complete or not at all. The same input gives the
// same file. Throws Error(kInvalidArgument) for an end token that the tokenizer lacks, a file that
// can't be read, or as Tokenizer::encode(), and Error(kCorrupt) naming file and offset of a
// document that is longer than allowed.
TokenizeReport tokenize_files(const std::vector<std::string>& inputs, const std::string& output,
                              Tokenizer& tokenizer, const TokenizeOptions& options = {});

}  // namespace weft::data::text
