// Builds the page.

document.title = `${data.store} \u2013 Cairn report`;
startFacts();
startFindings();
startTreemap();
startTimeline();
startHeatmap();
startTensors();
startHealth();
startNotes();
startTheme();
document.documentElement.setAttribute("data-ready", "");
