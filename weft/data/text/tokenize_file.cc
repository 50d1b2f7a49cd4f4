#include "weft/data/text/tokenize_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "weft/base/error.h"
#include "weft/base/file.h"
#include "weft/base/kind/file_kind.h"
#include "weft/data/text/token_file.h"

namespace weft::data::text {
namespace {

void refuse_other_kinds(const std::string& path, std::string_view head) {
  if (const auto kind = wrong_kind(head)) throw Error(Errc::kBadConfig, path + " is " + *kind);
}

// Reads the documents of a file in order.
class DocumentReader {
 public:
  DocumentReader(const std::string& path, const TokenizeOptions& options)
      : path_(path), options_(options), file_(::open(path.c_str(), O_RDONLY | O_CLOEXEC)) {
    if (!file_) fail_io("cannot open", path);
  }

  // Reads the next document. Returns false at the end of the file.
  bool next(std::string& document) {
    document.clear();
    if (options_.documents == Documents::kFile) {
      while (fill()) take(document, buffer_.size() - at_);
      return !document.empty();
    }
    std::string line;
    while (next_line(line)) {
      const bool blank = line.empty() || line == "\r";
      if (blank && document.empty()) continue;
      if (blank) return end(document);
      if (options_.documents == Documents::kBlank && !document.empty()) document += '\n';
      document += line;
      limit(document);
      if (options_.documents == Documents::kLine) return end(document);
    }
    return end(document);
  }

 private:
  // Removes the rest of the last line's end, which may be "\r\n". Returns false if nothing is left.
  static bool end(std::string& document) {
    if (document.ends_with('\r')) document.pop_back();
    return !document.empty();
  }

  bool fill() {
    if (at_ < buffer_.size()) return true;
    buffer_.resize(kChunk);
    ssize_t got = -1;
    do {
      got = ::read(file_.get(), buffer_.data(), buffer_.size());
    } while (got < 0 && errno == EINTR);
    if (got < 0) fail_io("cannot read", path_);
    buffer_.resize(static_cast<std::size_t>(got));
    at_ = 0;
    if (std::exchange(begins_, false)) {
      refuse_other_kinds(path_, buffer_);
      at_ = mark_bytes(buffer_);
      offset_ = static_cast<std::int64_t>(at_);
    }
    return at_ < buffer_.size() || (got > 0 && fill());
  }

  void take(std::string& out, std::size_t count) {
    out.append(buffer_, at_, count);
    at_ += count;
    offset_ += static_cast<std::int64_t>(count);
    limit(out);
  }

  // Reads the next line without its line feed. Returns false at the end of the file.
  bool next_line(std::string& line) {
    line.clear();
    bool any = false;
    while (fill()) {
      any = true;
      const std::size_t feed = buffer_.find('\n', at_);
      take(line, (feed == std::string::npos ? buffer_.size() : feed) - at_);
      if (feed == std::string::npos) continue;
      ++at_;
      ++offset_;
      break;
    }
    return any;
  }

  void limit(const std::string& document) const {
    if (document.size() <= options_.max_document_bytes) return;
    const std::string remedy = options_.documents == Documents::kFile
                                   ? "divide it into several files"
                                   : "divide it by blank lines or line feeds";
    throw Error(Errc::kBadConfig, path_ + ": the document that ends after byte " +
                                      std::to_string(offset_) + " is longer than the " +
                                      std::to_string(options_.max_document_bytes) +
                                      " bytes allowed; " + remedy);
  }

  static constexpr std::size_t kChunk = std::size_t{1} << 18;
  const std::string path_;
  const TokenizeOptions& options_;
  UniqueFd file_;
  std::string buffer_;
  std::size_t at_ = 0;
  std::int64_t offset_ = 0;
  bool begins_ = true;  // Nothing has been read yet.
};

}  // namespace

std::string check_text_file(const std::string& path) {
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file) fail_io("cannot open", path);
  std::string head(kHeadBytes, '\0');
  ssize_t got = -1;
  do {
    got = ::pread(file.get(), head.data(), head.size(), 0);
  } while (got < 0 && errno == EINTR);
  if (got < 0) fail_io("cannot read", path);
  head.resize(static_cast<std::size_t>(got));
  refuse_other_kinds(path, head);
  const auto doubt = doubt_of_text(head, head.size() < kHeadBytes);
  return doubt ? path + " " + *doubt : "";
}

TokenizeReport tokenize_files(const std::vector<std::string>& inputs, const std::string& output,
                              Tokenizer& tokenizer, const TokenizeOptions& options) {
  TokenFileInfo info{tokenizer.vocab_size(), tokenizer.fingerprint(), std::nullopt};
  if (!options.end_token.empty()) {
    info.end_token = tokenizer.id_of(options.end_token);
    WEFT_REQUIRE(info.end_token.has_value(),
                 "the tokenizer has no token " + options.end_token + " to end documents with");
  }
  TokenWriter writer(output, info);
  TokenizeReport report;
  std::string document;
  std::vector<TokenId> ids;
  for (const std::string& path : inputs) {
    DocumentReader reader(path, options);
    while (reader.next(document)) {
      ids.clear();
      tokenizer.encode(document, ids, options.specials);
      if (info.end_token) ids.push_back(*info.end_token);
      writer.append(ids);
      ++report.documents;
      report.bytes += static_cast<std::int64_t>(document.size());
    }
  }
  writer.finish();
  report.tokens = writer.size();
  return report;
}

}  // namespace weft::data::text
