#include "weft/data/text/internal/splitter.h"

#include "weft/data/text/internal/characters.h"

namespace weft::data::text::internal {

std::string replaced(std::string_view text, std::string_view old, std::string_view by) {
  std::string out;
  out.reserve(text.size());
  std::size_t at = 0;
  for (std::size_t found; (found = text.find(old, at)) != std::string_view::npos;
       at = found + old.size()) {
    out.append(text.substr(at, found - at)).append(by);
  }
  return out.append(text.substr(at));
}

Splitter::Splitter(std::vector<SplitStage> stages)
    : stages_(std::move(stages)), scratch_(stages_.size()) {
  for (const SplitStage& stage : stages_) {
    matchers_.emplace_back();
    if (stage.regex) matchers_.back().emplace(*stage.regex);
  }
}

void Splitter::split(std::string_view text, bool at_start, const Sink& sink) {
  if (!text.empty()) run(0, text, at_start, sink);
}

void Splitter::run(std::size_t stage, std::string_view piece, bool at_start, const Sink& sink) {
  if (stage == stages_.size()) {
    sink(piece);
    return;
  }
  switch (stages_[stage].kind) {
    case SplitStage::Kind::kRegex:
    case SplitStage::Kind::kLiteral: run_matches(stage, piece, at_start, sink); return;
    case SplitStage::Kind::kMetaspace: run_metaspace(stage, piece, at_start, sink); return;
    case SplitStage::Kind::kPrefix:
      if (!piece.starts_with(stages_[stage].text)) {
        scratch_[stage].assign(stages_[stage].text).append(piece);
        piece = scratch_[stage];
      }
      run(stage + 1, piece, at_start, sink);
      return;
  }
}

std::optional<std::pair<std::size_t, std::size_t>> Splitter::match(std::size_t stage,
                                                                   std::string_view piece,
                                                                   std::size_t from) {
  if (matchers_[stage]) return matchers_[stage]->next(piece, from);
  const std::string& text = stages_[stage].text;
  const std::size_t found = piece.find(text, from);
  if (found == std::string_view::npos) return std::nullopt;
  return std::pair{found, found + text.size()};
}

void Splitter::run_matches(std::size_t stage, std::string_view piece, bool at_start,
                           const Sink& sink) {
  std::size_t done = 0;
  const auto emit = [&](std::size_t end) {
    if (end > done) run(stage + 1, piece.substr(done, end - done), at_start && done == 0, sink);
    done = std::max(done, end);
  };
  for (std::size_t from = 0; from < piece.size();) {
    const auto found = match(stage, piece, from);
    if (!found) break;
    emit(found->first);
    emit(found->second);
    from = found->second > found->first ? found->second
                                        : found->second + character_at(piece, found->second).length;
  }
  emit(piece.size());
}

void Splitter::run_metaspace(std::size_t stage, std::string_view piece, bool at_start,
                             const Sink& sink) {
  const SplitStage& what = stages_[stage];
  std::string& text = scratch_[stage];
  text = replaced(piece, " ", what.text);
  if ((what.always || (what.first && at_start)) && !text.starts_with(what.text))
    text.insert(0, what.text);
  const std::string_view all = text;
  if (!what.cut) {
    run(stage + 1, all, at_start, sink);
    return;
  }
  for (std::size_t begin = 0; begin < all.size();) {
    const std::size_t end = std::min(all.find(what.text, begin + 1), all.size());
    run(stage + 1, all.substr(begin, end - begin), at_start && begin == 0, sink);
    begin = end;
  }
}

}  // namespace weft::data::text::internal
