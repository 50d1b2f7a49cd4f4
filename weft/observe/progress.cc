#include "weft/observe/progress.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "weft/base/error.h"
#include "weft/base/file.h"
#include "weft/base/json/json_writer.h"
#include "weft/base/log.h"
#include "weft/base/text/numbers.h"
#include "weft/base/text/variables.h"
#include "weft/base/text/words.h"

namespace weft::observe {
namespace {

constexpr int kSmallestBar = 4;
constexpr int kMinColumns = 10;

bool locale_is_utf8() {
  std::string locale;
  for (const char* name : {"LC_ALL", "LC_CTYPE", "LANG"}) {
    if (locale.empty()) locale = variable(name);
  }
  std::transform(locale.begin(), locale.end(), locale.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return locale.find("utf-8") != std::string::npos || locale.find("utf8") != std::string::npos;
}

int columns_of(int fd) {
  const int asked = std::atoi(variable("COLUMNS").c_str());
  if (asked > 0) return std::min(asked, 1000);
  winsize size{};
  if (::ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return size.ws_col;
  return 80;
}

// Each character that is drawn here takes one column.
int width_of(std::string_view text) { return static_cast<int>(num_characters(text)); }

std::string cut_to(const std::string& text, int columns) {
  std::size_t at = 0;
  for (int seen = 0; at < text.size(); ++at) {
    if ((text[at] & 0xC0) != 0x80 && ++seen > columns) break;
  }
  return text.substr(0, at);
}

double rate_of(const ProgressView& view) {
  return view.seconds > 0 ? static_cast<double>(view.done - view.first) / view.seconds : 0;
}

// "00:12<00:15", or "00:12" if the total is unknown. The run may end before the task does.
std::string clock_of(const ProgressView& view) {
  if (view.total <= 0) return format_clock(view.seconds);
  std::int64_t steps = view.total - view.done;
  if (view.run.total > 0) steps = std::min(steps, view.run.total - view.run.done);
  const double rate = rate_of(view);
  const double left = steps <= 0 ? 0 : rate > 0 ? static_cast<double>(steps) / rate : -1;
  return format_clock(view.seconds) + "<" + format_clock(left);
}

bool shows_run(const ProgressView& view) {
  return view.run.total > 0 && view.run.total != view.total;
}

// floor(whole * done / total), from 0 to `whole`.
std::int64_t part_of(std::int64_t whole, std::int64_t done, std::int64_t total) {
  return whole * std::clamp<std::int64_t>(done, 0, total) / total;
}

// Seconds until the end of the run; below 0: unknown.
double left_of_run(const ProgressView::Run& run) {
  const std::int64_t done = run.done - run.first;
  if (run.done >= run.total) return 0;
  return done > 0
             ? run.seconds / static_cast<double>(done) * static_cast<double>(run.total - run.done)
             : -1;
}

// "run 5% <04:01".
std::string run_of(const ProgressView& view) {
  return "run " + std::to_string(part_of(100, view.run.done, view.run.total)) + "% <" +
         format_clock(left_of_run(view.run));
}

// Slow steps are shown in seconds per step, as in tqdm.
std::string speed_of(const ProgressView& view) {
  const double rate = rate_of(view);
  if (rate <= 0) return "?it/s";
  return rate < 1 ? shortened(1 / rate) + "s/it" : shortened(rounded(rate, 1)) + "it/s";
}

std::string percent_of(const ProgressView& view) {
  return std::to_string(part_of(100, view.done, view.total)) + "%";
}

std::string count_of(const ProgressView& view) {
  return std::to_string(view.done) + (view.total > 0 ? "/" + std::to_string(view.total) : "it");
}

std::string blocks(const ProgressView& view, int columns, bool unicode) {
  if (columns <= 0) return "";
  constexpr std::array<const char*, 8> kParts{" ", "▏", "▎", "▍", "▌", "▋", "▊", "▉"};
  const auto eighths = static_cast<int>(part_of(8 * columns, view.done, view.total));
  std::string bar;
  for (int i = 0; i < eighths / 8; ++i) bar += unicode ? "█" : "#";
  if (eighths / 8 < columns) bar += unicode ? kParts[static_cast<std::size_t>(eighths % 8)] : " ";
  for (int i = eighths / 8 + 1; i < columns; ++i) bar += " ";
  return bar;
}

}  // namespace

ProgressMode parse_progress_mode(std::string_view name) {
  constexpr std::pair<const char*, ProgressMode> kModes[] = {{"auto", ProgressMode::kAuto},
                                                             {"bar", ProgressMode::kBar},
                                                             {"lines", ProgressMode::kLines},
                                                             {"json", ProgressMode::kJson},
                                                             {"none", ProgressMode::kNone}};
  for (const auto& [known, mode] : kModes) {
    if (name == known) return mode;
  }
  throw Error(Errc::kInvalidArgument, "unknown progress mode '" + std::string(name) +
                                          "'; use auto, bar, lines, json or none");
}

TerminalTraits terminal_traits(int fd) {
  TerminalTraits traits;
  const std::string term = variable("TERM");
  const std::string force = variable("FORCE_COLOR");
  traits.is_terminal = ::isatty(fd) == 1 && !term.empty() && term != "dumb";
  // no-color.org: any nonempty NO_COLOR disables color. FORCE_COLOR overrides NO_COLOR.
  traits.color = force.empty() ? traits.is_terminal && variable("NO_COLOR").empty() : force != "0";
  traits.unicode = locale_is_utf8();
  traits.columns = columns_of(fd);
  return traits;
}

std::string render_bar(const ProgressView& view, int columns, bool unicode) {
  const std::string head = view.task.empty() ? "" : view.task + ": ";
  std::size_t values = view.values.size();
  bool speed = true, run = shows_run(view);
  while (true) {
    std::string tail = count_of(view) + " [" + clock_of(view) + (run ? ", " + run_of(view) : "") +
                       (speed ? ", " + speed_of(view) : "");
    for (std::size_t i = 0; i < values; ++i)
      tail += ", " + view.values[i].first + "=" + shortened(view.values[i].second);
    tail += "]";
    const bool bar = view.total > 0;
    const std::string left =
        bar ? head + std::string(4 - percent_of(view).size(), ' ') + percent_of(view) + "|" : head;
    if (bar) tail = "| " + tail;
    const int room = columns - width_of(left) - width_of(tail);
    if (room >= (bar ? kSmallestBar : 0))
      return left + (bar ? blocks(view, room, unicode) : "") + tail;
    if (values > 0) {
      --values;
    } else if (speed) {
      speed = false;
    } else if (run) {
      run = false;
    } else {
      const std::string rest = head + (bar ? percent_of(view) + " " : "") + count_of(view);
      const std::string clock = " [" + clock_of(view) + "]";
      return width_of(rest + clock) <= columns ? rest + clock : cut_to(rest, columns);
    }
  }
}

std::string render_line(const ProgressView& view) {
  std::string line = (view.task.empty() ? "" : view.task + ": ") + count_of(view);
  if (view.total > 0) line += " (" + percent_of(view) + ")";
  line += " " + clock_of(view);
  if (shows_run(view)) line += " " + run_of(view);
  line += " " + speed_of(view);
  for (const auto& [name, value] : view.values) line += " " + name + "=" + shortened(value);
  return line;
}

std::string render_json(const ProgressView& view) {
  std::string line;
  JsonWriter json(line);
  json.begin_object().field("event", "progress").field("task", view.task).field("done", view.done);
  json.field("total", view.total).field("seconds", view.seconds);
  if (shows_run(view)) {
    const double left = left_of_run(view.run);
    json.field("run_done", view.run.done).field("run_total", view.run.total).key("run_left_s");
    left < 0 ? json.raw("null") : json.value(std::round(left));
  }
  json.key("values").begin_object();
  for (const auto& [name, value] : view.values) json.field(name, value);
  json.end_object().end_object();
  return line;
}

Progress::Progress(Options options) : options_(std::move(options)) {
  if (options_.rank != 0) options_.mode = ProgressMode::kNone;
  if (options_.mode == ProgressMode::kAuto) {
    options_.mode =
        terminal_traits(options_.fd).is_terminal ? ProgressMode::kBar : ProgressMode::kLines;
  }
}

Progress::~Progress() { finish(); }

void Progress::start_run(std::int64_t total, std::int64_t done) {
  finish();
  view_.run = {.done = done, .total = total, .first = done, .seconds = 0};
  if (options_.mode != ProgressMode::kNone) run_started_ = options_.now();
}

void Progress::change_run(std::int64_t total) { view_.run.total = total; }

void Progress::start(const std::string& task, std::int64_t total, std::int64_t first) {
  finish();
  if (options_.mode == ProgressMode::kNone) return;
  // A name from a file must not control the terminal.
  view_ = {.task = one_line(task), .done = first, .total = total, .first = first, .run = view_.run};
  started_ = options_.now();
  open_ = true;
  if (options_.mode == ProgressMode::kBar) draw(false);
  next_ = started_ + (options_.mode == ProgressMode::kBar ? options_.redraw : options_.line_every);
}

void Progress::update(std::int64_t done, const Values& values) {
  if (!open_) return;
  view_.run.done += done - view_.done;
  view_.done = done;
  if (!values.empty()) view_.values = values;
  const auto now = options_.now();
  if (now < next_) return;
  draw(false);
  next_ = now + (options_.mode == ProgressMode::kBar ? options_.redraw : options_.line_every);
}

void Progress::finish() {
  if (!open_) return;
  open_ = false;
  draw(true);
}

void Progress::draw(bool last) {
  const auto now = options_.now();
  view_.seconds = std::chrono::duration<double>(now - started_).count();
  view_.run.seconds = std::chrono::duration<double>(now - run_started_).count();
  if (options_.mode == ProgressMode::kBar) return draw_bar(last);
  const std::string line =
      (options_.mode == ProgressMode::kJson ? render_json(view_) : render_line(view_)) + "\n";
  // A failed write, such as to a closed stderr, must not end the run.
  [[maybe_unused]] const ssize_t wrote = ::write(options_.fd, line.data(), line.size());
}

void Progress::draw_bar(bool last) {
  const TerminalTraits traits = terminal_traits(options_.fd);  // the window may be resized
  // The last column stays free, because some terminals would wrap the line.
  const int columns = std::max(traits.columns - 1, kMinColumns);
  std::string text = render_bar(view_, columns, traits.unicode);
  const int width = width_of(text);
  const int stale = std::min(drawn_columns_ - width, columns - width);
  drawn_columns_ = last ? 0 : width;
  if (traits.color) text = "\x1b[32m" + text + "\x1b[0m";
  text = "\r" + text + std::string(static_cast<std::size_t>(std::max(stale, 0)), ' ');
  // If the log writes to the same terminal, it draws the bar again below its own lines.
  if (options_.fd == STDERR_FILENO) set_status_line(last ? "" : text, std::max(width, 0));
  if (last) text += "\n";
  [[maybe_unused]] const ssize_t wrote = ::write(options_.fd, text.data(), text.size());
}

}  // namespace weft::observe
