#include "weft/rank_link/spare.h"

#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <cstring>

#include "weft/base/error.h"
#include "weft/base/text/variables.h"
#include "weft/rank_link/messages.h"

namespace weft::rank_link {
namespace {

// Separates variables: a byte that names of files and hosts do not contain.
constexpr char kSeparator = '\x1e';

void set_environment(const std::string& text) {
  for (const std::string& entry : environment_of(text)) {
    const auto equals = entry.find('=');
    if (equals == std::string::npos) continue;
    ::setenv(entry.substr(0, equals).c_str(), entry.substr(equals + 1).c_str(), 1);
  }
  ::unsetenv(kSpareVariable);
}

// A fork of the launcher is called "weft spare"; ps and weft chaos know ranks by their name.
void rename_process() {
  std::array<char, 17> name{};
  const char* const rank = variable_or_null("RANK");
  if (rank == nullptr || ::prctl(PR_GET_NAME, name.data()) != 0 ||
      std::strcmp(name.data(), "weft spare") != 0)
    return;
  ::prctl(PR_SET_NAME, (std::string("weft rank ") + rank).c_str());
}

}  // namespace

bool is_spare() noexcept { return is_variable_set(kSpareVariable); }

void become_rank() {
  if (!is_spare()) return;
  Link* const link = launcher();
  if (link == nullptr)
    throw Error(Errc::kBadConfig,
                "WEFT_SPARE is set, but no launcher has started this process; unset it",
                {"init", -1, -1});
  become_rank(*link);
}

void become_rank(Link& launcher) {
  tell(launcher, Ready{});
  while (!launcher.ended()) {
    // The wait sleeps until a text comes or the launcher ends. The deadline only bounds it.
    const auto message = launcher.wait(Deadline::in(std::chrono::hours(1)));
    const auto said = message ? decode<LauncherMessage>(*message) : std::nullopt;
    const auto* const become = said ? std::get_if<BecomeRank>(&*said) : nullptr;
    if (become == nullptr) continue;
    set_environment(become->value);
    rename_process();
    return;
  }
  ::_exit(0);
}

std::string to_text(const std::vector<std::string>& environment) {
  std::string text;
  for (const std::string& entry : environment) text += (text.empty() ? "" : "\x1e") + entry;
  return text;
}

std::vector<std::string> environment_of(const std::string& text) {
  std::vector<std::string> entries;
  for (std::size_t from = 0; from < text.size();) {
    const auto end = std::min(text.find(kSeparator, from), text.size());
    entries.push_back(text.substr(from, end - from));
    from = end + 1;
  }
  return entries;
}

}  // namespace weft::rank_link
