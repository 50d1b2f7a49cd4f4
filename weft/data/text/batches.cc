#include "weft/data/text/batches.h"

namespace weft::data::text {
namespace {

SamplerOptions with_size(SamplerOptions options, std::int64_t size) {
  options.size = size;
  return options;
}

}  // namespace

Batches::Batches(std::shared_ptr<const Rows> rows, SamplerOptions options)
    : rows_(std::move(rows)), sampler_(with_size(options, rows_->size())) {}

std::optional<TokenBatch> Batches::next() {
  auto share = sampler_.next();
  if (!share) return std::nullopt;
  const auto length = static_cast<std::size_t>(rows_->length());
  TokenBatch batch;
  batch.rows = static_cast<std::int64_t>(share->indices.size());
  batch.length = rows_->length();
  for (auto* values : {&batch.inputs, &batch.targets, &batch.positions, &batch.documents}) values->resize(share->indices.size() * length);
  for (std::size_t i = 0; i < share->indices.size(); ++i) {
    const auto row = [&](std::vector<std::int64_t>& values) { return std::span(values).subspan(i * length, length); };
    rows_->read(share->indices[i], share->epoch, {row(batch.inputs), row(batch.targets), row(batch.positions), row(batch.documents)});
  }
  batch.share = std::move(*share);
  return batch;
}

}  // namespace weft::data::text
