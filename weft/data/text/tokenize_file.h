// Tokenizes text files into a token file, one document at a time. Memory use is that of the longest
// document.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "weft/data/text/tokenizer.h"

namespace weft::data::text {

// Checks the start of a text file. Throws Error(kBadConfig), naming the file and the remedy, for
// one that is no text in UTF-8 for certain, such as a Git LFS pointer, UTF-16 or a compressed file.
// Returns a doubt for a warning, such as "FILE has zero bytes…"; empty: none. Throws
// Error(kInvalidArgument) for a file that cannot be read.
std::string check_text_file(const std::string& path);

enum class Documents {
  kFile,   // Each file is a document.
  kLine,   // Each line that is not blank is a document, without its line end.
  kBlank,  // Blank lines separate documents. A document keeps the line feeds within it.
};

struct TokenizeOptions {
  Documents documents = Documents::kFile;
  std::string end_token = "<|endoftext|>";  // Token appended to each document. Empty: none.
  Specials specials = Specials::kAsText;
  std::size_t max_document_bytes = std::size_t{64} << 20;
};

struct TokenizeReport {
  std::int64_t documents = 0;
  std::int64_t bytes = 0;   // Bytes of all documents.
  std::int64_t tokens = 0;  // Number of tokens, including end tokens.
};

// Reads the files in order and writes `output`, completely or not at all. The same input gives the
// same file. A byte order mark at the start of a file is not part of the text. Throws
// Error(kInvalidArgument) for an end token that the tokenizer does not have, for a file that cannot
// be read, and as Tokenizer::encode(). Throws Error(kBadConfig), naming file and offset, for a
// document that is too long. Also throws as check_text_file().
TokenizeReport tokenize_files(const std::vector<std::string>& inputs, const std::string& output,
                              Tokenizer& tokenizer, const TokenizeOptions& options = {});

}  // namespace weft::data::text
