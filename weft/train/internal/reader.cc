#include "weft/train/internal/reader.h"

#include <ATen/ATen.h>

#include <algorithm>

namespace weft::train::internal {
namespace {

constexpr std::int64_t kPiece =
    256;  // tokens that an LSTM reads at a time; the logits of all of them are in memory

// int64 [1, end - begin].
at::Tensor tokens_of(const std::vector<std::int64_t>& context, std::int64_t begin,
                     std::int64_t end) {
  const at::ArrayRef<std::int64_t> all(context);
  return at::tensor(
             all.slice(static_cast<std::size_t>(begin), static_cast<std::size_t>(end - begin)),
             at::kLong)
      .unsqueeze(0);
}

class GptReader : public Reader {
 public:
  explicit GptReader(models::Gpt model) : model_(std::move(model)) {}

  at::Tensor logits(const std::vector<std::int64_t>& context) override {
    const auto size = static_cast<std::int64_t>(context.size()),
               room = model_->options.sequence_length;
    if (size > room) cache_ = {};
    const std::int64_t begin = size > room ? size - room : cache_.length(),
                       vocabulary = model_->options.vocabulary;
    const at::Tensor mine =
        model_->extend(tokens_of(context, begin, size), cache_, models::Wanted::kLast);
    return parallel::whole_of(mine, {2, vocabulary}, model_->tp)
        .reshape({-1})
        .narrow(0, 0, vocabulary);
  }

 private:
  models::Gpt model_;
  models::GptCache cache_;
};

class LstmReader : public Reader {
 public:
  explicit LstmReader(models::Lstm model) : model_(std::move(model)) {}

  at::Tensor logits(const std::vector<std::int64_t>& context) override {
    at::Tensor last;
    for (const auto size = static_cast<std::int64_t>(context.size()); seen_ < size;) {
      const std::int64_t end = std::min(size, seen_ + kPiece);
      last = model_->forward(tokens_of(context, seen_, end), &state_).select(1, -1).reshape({-1});
      seen_ = end;
    }
    return last;
  }

 private:
  models::Lstm model_;
  models::LstmState state_;
  std::int64_t seen_ = 0;
};

}  // namespace

std::unique_ptr<Reader> make_reader(models::Gpt model) {
  return std::make_unique<GptReader>(std::move(model));
}
std::unique_ptr<Reader> make_reader(models::Lstm model) {
  return std::make_unique<LstmReader>(std::move(model));
}

}  // namespace weft::train::internal
