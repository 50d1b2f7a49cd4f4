#include "weft/comm/internal/job_ranks.h"

#include <algorithm>
#include <cctype>
#include <string_view>

namespace weft::comm::internal {
namespace {

constexpr std::string_view kWord = "rank ";

bool is_digit(char c) { return std::isdigit(static_cast<unsigned char>(c)) != 0; }
bool is_letter(char c) { return std::isalpha(static_cast<unsigned char>(c)) != 0; }

int rank_in_job(int rank, std::span<const int> ranks) {
  return rank >= 0 && rank < static_cast<int>(ranks.size()) ? ranks[static_cast<std::size_t>(rank)]
                                                            : rank;
}

}  // namespace

std::string rename_ranks(const std::string& text, std::span<const int> ranks,
                         const std::string& suffix) {
  constexpr std::size_t kMaxDigits = 6;
  std::string renamed;
  std::size_t done = 0;
  for (auto at = text.find(kWord); at != std::string::npos; at = text.find(kWord, at + 1)) {
    const auto first = at + kWord.size();
    auto end = first;
    while (end < text.size() && is_digit(text[end])) ++end;
    const bool is_word = at == 0 || !is_letter(text[at - 1]);
    if (!is_word || end == first || end - first > kMaxDigits) continue;
    const int rank = std::stoi(text.substr(first, end - first));
    const bool known = rank < static_cast<int>(ranks.size());
    const bool renamed_before = !suffix.empty() && text.compare(end, suffix.size(), suffix) == 0;
    if (!known || renamed_before) continue;
    renamed += text.substr(done, first - done) + std::to_string(rank_in_job(rank, ranks)) + suffix;
    done = end;
  }
  return renamed + text.substr(done);
}

Error in_job_ranks(const Error& error, std::span<const int> ranks) {
  if (ranks.empty()) return error;
  const auto& context = error.context();
  return Error(
      error.code(), rename_ranks(error.message(), ranks, " of the job"),
      {context.operation, rank_in_job(context.rank, ranks), rank_in_job(context.peer, ranks)});
}

std::vector<int> ranks_in_job(std::span<const int> part, std::span<const int> group) {
  std::vector<int> ranks;
  for (const int rank : part) ranks.push_back(rank_in_job(rank, group));
  return ranks;
}

std::vector<int> ranks_in_group(std::span<const int> job, std::span<const int> group) {
  if (group.empty()) return {job.begin(), job.end()};
  std::vector<int> ranks;
  for (const int rank : job) {
    const auto found = std::find(group.begin(), group.end(), rank);
    if (found != group.end()) ranks.push_back(static_cast<int>(found - group.begin()));
  }
  return ranks;
}

}  // namespace weft::comm::internal
